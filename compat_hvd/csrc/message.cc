#include "message.h"

#include "wire.h"

namespace compat_hvd {
namespace {

void put(Encoder& out, const Status& status) {
  out.put(status.code);
  out.put(status.message);
}

Status get_status(Decoder& in) {
  const Code code = in.get<Code>();
  return {code, in.get<std::string>()};
}

void put(Encoder& out, const Request& request) {
  out.put(request.name);
  out.put(request.process_set);
  out.put(request.collective);
  out.put(request.dtype);
  out.put(request.shape);
  out.put(request.op);
  out.put(request.prescale);
  out.put(request.postscale);
  out.put(request.root);
  out.put(request.group_member);
  out.put(request.group_size);
  out.put(request.sizes);
  put(out, request.error);
}

Request get_request(Decoder& in) {
  Request request;
  request.name = in.get<std::string>();
  request.process_set = in.get<int32_t>();
  request.collective = in.get<Collective>();
  request.dtype = in.get<DataType>();
  request.shape = in.list<int64_t>();
  request.op = in.get<ReduceOp>();
  request.prescale = in.get<double>();
  request.postscale = in.get<double>();
  request.root = in.get<int32_t>();
  request.group_member = in.get<int32_t>();
  request.group_size = in.get<int32_t>();
  request.sizes = in.list<int64_t>();
  request.error = get_status(in);
  return request;
}

}  // namespace

int64_t Request::elements() const {
  int64_t count = 1;
  for (int64_t dimension : shape) count *= dimension;
  return count;
}

std::string Request::key_of_member(int member) const {
  const std::string suffix = '_' + std::to_string(group_member) + "of" + std::to_string(group_size);
  const size_t at = name.rfind(suffix);
  if (at == std::string::npos) return name;
  return name.substr(0, at) + '_' + std::to_string(member) + "of" + name.substr(at + suffix.size());
}

std::vector<int64_t> Request::variable_part() const {
  if (collective == Collective::kAllgather && !shape.empty()) return {shape[0]};
  if (collective == Collective::kAlltoall) return sizes;
  return {};
}

size_t Request::row_bytes() const {
  size_t bytes = size_of(dtype);
  for (size_t i = 1; i < shape.size(); ++i) bytes *= static_cast<size_t>(shape[i]);
  return bytes;
}

std::string shape_text(const std::vector<int64_t>& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) text += (i ? ", " : "") + std::to_string(shape[i]);
  return text + "]";
}

std::string UpMessage::encode() const {
  Encoder out;
  out.put(kind);
  out.put(rank);
  out.put(acknowledged);
  switch (kind) {
    case Up::kRequest:
      out.put(ticket);
      put(out, request);
      break;
    case Up::kCachedRequest:
      out.put(ticket);
      out.put(cache_id);
      out.put(variable_part);
      break;
    case Up::kGoodbye:
      out.put(completed);
      break;
    case Up::kUsage:
      out.put(usage);
      break;
    case Up::kFailure:
    case Up::kDeath:
      out.put(subject);
      out.put(text);
      break;
    case Up::kAcknowledge:
    case Up::kLast:
    case Up::kHeartbeat:
      break;
  }
  return out.take();
}

UpMessage UpMessage::decode(const std::string& frame) {
  Decoder in(frame);
  UpMessage message;
  message.kind = in.get<Up>();
  message.rank = in.get<int32_t>();
  message.acknowledged = in.get<uint64_t>();
  switch (message.kind) {
    case Up::kRequest:
      message.ticket = in.get<uint64_t>();
      message.request = get_request(in);
      break;
    case Up::kCachedRequest:
      message.ticket = in.get<uint64_t>();
      message.cache_id = in.get<uint32_t>();
      message.variable_part = in.list<int64_t>();
      break;
    case Up::kGoodbye:
      message.completed = in.get<uint64_t>();
      break;
    case Up::kUsage:
      message.usage = in.get<int64_t>();
      break;
    case Up::kFailure:
    case Up::kDeath:
      message.subject = in.get<int32_t>();
      message.text = in.get<std::string>();
      break;
    case Up::kAcknowledge:
    case Up::kLast:
    case Up::kHeartbeat:
      break;
  }
  return message;
}

std::string DownMessage::encode() const {
  Encoder out;
  out.put(kind);
  switch (kind) {
    case Down::kExecute:
      out.put(sequence);
      out.put(process_set);
      out.put(participants);
      out.put(static_cast<uint32_t>(items.size()));
      for (const ExecuteItem& item : items) {
        out.put(item.cache_id);
        out.put(item.name);
        out.put(item.sizes);
      }
      out.put(revoked);
      break;
    case Down::kFail:
      out.put(ticket);
      put(out, status);
      break;
    case Down::kFatal:
      put(out, status);
      break;
    case Down::kAskUsage:
    case Down::kAllGone:
    case Down::kHeartbeat:
      break;
  }
  return out.take();
}

DownMessage DownMessage::decode(const std::string& frame) {
  Decoder in(frame);
  DownMessage message;
  message.kind = in.get<Down>();
  switch (message.kind) {
    case Down::kExecute: {
      message.sequence = in.get<uint64_t>();
      message.process_set = in.get<int32_t>();
      message.participants = in.list<int32_t>();
      const uint32_t count = in.get<uint32_t>();
      for (uint32_t i = 0; i < count; ++i) {
        ExecuteItem item;
        item.cache_id = in.get<uint32_t>();
        item.name = in.get<std::string>();
        item.sizes = in.list<int64_t>();
        message.items.push_back(std::move(item));
      }
      message.revoked = in.list<uint32_t>();
      break;
    }
    case Down::kFail:
      message.ticket = in.get<uint64_t>();
      message.status = get_status(in);
      break;
    case Down::kFatal:
      message.status = get_status(in);
      break;
    case Down::kAskUsage:
    case Down::kAllGone:
    case Down::kHeartbeat:
      break;
  }
  return message;
}

}  // namespace compat_hvd
