// The timeline: whatever happens, each file is a JSON array in which phases nest and end, and nothing is in two files.
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "../../compat_hvd/csrc/json.h"
#include "world.h"

using namespace compat_hvd;

namespace {

// A folder for the files of one case, removed at its end.
class Folder {
 public:
  Folder() {
    char name[] = "/tmp/compat_hvd_timeline_XXXXXX";
    CHECK(mkdtemp(name));
    path_ = name;
  }
  ~Folder() {
    for (const std::string& file : files_) unlink(file.c_str());
    rmdir(path_.c_str());
  }
  std::string file(const std::string& name) {
    files_.insert(path_ + "/" + name);
    return path_ + "/" + name;
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  std::set<std::string> files_;
};

TimelineOptions to(const std::string& path) {
  TimelineOptions options;
  options.path = path;
  return options;
}

// In one read, so that it is the file of one moment; without the blanks that may follow.
std::string contents(const std::string& path) {
  const int descriptor = open(path.c_str(), O_RDONLY);
  CHECK(descriptor >= 0);
  std::string text(8 << 20, '\0');
  CHECK(text.size() > static_cast<size_t>(lseek(descriptor, 0, SEEK_END)) && lseek(descriptor, 0, SEEK_SET) == 0);
  const ssize_t bytes = read(descriptor, &text[0], text.size());
  close(descriptor);
  CHECK(bytes >= 0);
  text.resize(static_cast<size_t>(bytes));
  text.resize(text.find_last_not_of(' ') + 1);
  return text;
}

std::string field(const std::string& line, const std::string& name) {
  const size_t at = line.find("\"" + name + "\":");
  if (at == std::string::npos) return "";
  const size_t from = at + name.size() + 3;
  if (line[from] == '"') return line.substr(from + 1, line.find('"', from + 1) - from - 1);
  return line.substr(from, line.find_first_of(",}", from) - from);
}

void check_array(const std::string& text) {
  CHECK(text.size() > 4 && text.substr(0, 2) == "[\n" && text.substr(text.size() - 4) == "}\n]\n");
  CHECK(text.find("\n]") == text.size() - 3);
}

struct Counts {
  std::map<std::string, int> begun;  // phases by name
  int marks = 0, ready = 0, lost = 0, unfinished = 0;

  void add(const Counts& other) {
    for (const auto& [name, count] : other.begun) begun[name] += count;
    marks += other.marks, ready += other.ready, lost += other.lost, unfinished += other.unfinished;
  }
};

// Checks the file and returns what is in it.
Counts counts_of(const std::string& path) {
  const std::string text = contents(path);
  check_array(text);
  Counts counts;
  std::map<std::string, std::vector<std::string>> lanes;
  int64_t time = 0;
  for (size_t at = 2; at < text.size() - 3;) {
    const size_t end = text.find('\n', at);
    const std::string line = text.substr(at, end - at);
    const bool last = end == text.size() - 3;
    CHECK(line.front() == '{' && line.back() == (last ? '}' : ','));
    at = end + 1;
    const std::string kind = field(line, "ph"), name = field(line, "name");
    if (kind == "M") continue;
    const int64_t now = std::stoll(field(line, "ts"));
    CHECK(now >= time);
    time = now;
    std::vector<std::string>& lane = lanes[field(line, "pid") + "/" + field(line, "tid")];
    if (kind == "B") {
      CHECK(lane.size() < (field(line, "tid") == "0" ? 1u : 2u));
      lane.push_back(name);
      ++counts.begun[name];
    } else if (kind == "E") {
      CHECK(!lane.empty());
      lane.pop_back();
      counts.unfinished += field(line, "unfinished") == "true";
    } else if (kind == "X") {
      ++counts.ready;
    } else {
      CHECK(kind == "i" && (name == "CYCLE_START" || name == "EVENTS_LOST"));
      if (name == "CYCLE_START") {
        ++counts.marks;
      } else {
        counts.lost += std::stoi(field(line, "count"));
      }
    }
  }
  for (const auto& [key, lane] : lanes) CHECK(lane.empty());
  return counts;
}

std::vector<std::shared_ptr<Outcome>> submit_all(World* world, const Request& request, int elements) {
  std::vector<std::shared_ptr<Outcome>> all;
  for (int rank = 0; rank < world->size(); ++rank) {
    all.push_back(world->submit(rank, request, std::vector<float>(elements, 1.0f)));
  }
  return all;
}

Request of(Collective collective, const std::string& name) {
  Request request = sum_of(name);
  request.collective = collective;
  if (collective == Collective::kBroadcast) request.root = 0;
  return request;
}

void phases() {
  for (const auto& split : std::vector<std::vector<int>>{{1}, {3}, {5}, {2, 2}, {1, 3}}) {
    Folder folder;
    World world({split, 256, 1, {}, {}});
    Timeline& timeline = world.engine(0).timeline();
    TimelineOptions options = to(folder.file("a"));
    options.mark_responses = true;
    CHECK(timeline.start(options));
    const int size = world.size(), rounds = 3;
    const std::vector<std::pair<Collective, std::string>> kinds = {{Collective::kAllreduce, "ALLREDUCE"},
                                                                   {Collective::kReducescatter, "REDUCESCATTER"},
                                                                   {Collective::kAllgather, "ALLGATHER"},
                                                                   {Collective::kAlltoall, "ALLTOALL"},
                                                                   {Collective::kBroadcast, "BROADCAST"},
                                                                   {Collective::kBarrier, "BARRIER"},
                                                                   {Collective::kJoin, "JOIN"}};
    for (int round = 0; round < rounds; ++round) {
      for (const auto& [collective, name] : kinds) {
        CHECK(world.run_all(submit_all(&world, of(collective, "x" + name), 4000 * size)));
      }
    }
    timeline.stop();
    Counts counts = counts_of(folder.file("a"));
    for (const auto& [collective, name] : kinds) {
      CHECK(counts.begun["NEGOTIATE_" + name] == rounds && counts.begun[name] == rounds);
    }
    const int total = rounds * static_cast<int>(kinds.size());
    CHECK(counts.begun["QUEUE"] == total);
    CHECK(counts.ready == total * size && counts.marks == total && counts.lost == 0 && counts.unfinished == 0);
    if (size == 1) continue;
    const std::string way = split.size() > 1 ? "MPI_" : "SHM_";
    for (const char* name : {"ALLREDUCE", "REDUCESCATTER", "ALLGATHER", "ALLTOALL", "BCAST"}) {
      CHECK(counts.begun[way + name] >= rounds);
    }
    CHECK(counts.begun["MEMCPY_IN_FUSION_BUFFER"] == 5 * rounds);
    CHECK(counts.begun["ALLOCATE_OUTPUT"] == 3 * rounds && counts.begun["COPY_OWN_PART"] == rounds);
    const bool sliced = split.size() > 1 || size > 3;
    CHECK(counts.begun["MEMCPY_OUT_FUSION_BUFFER"] == (sliced ? 2 * rounds : 0));
  }
}

// Entries of one response pass through its activities together.
void fused() {
  Folder folder;
  World world({{2}, 256, 1, {}, {}});
  CHECK(world.engine(0).timeline().start(to(folder.file("a"))));
  std::vector<std::shared_ptr<Outcome>> all;
  for (int k = 0; k < 20; ++k) {
    for (int rank = 0; rank < 2; ++rank)
      all.push_back(world.submit(rank, sum_of(std::to_string(k)), std::vector<float>{1}));
  }
  CHECK(world.run_all(all));
  world.engine(0).timeline().stop();
  Counts counts = counts_of(folder.file("a"));
  for (const char* name : {"NEGOTIATE_ALLREDUCE", "ALLREDUCE", "MEMCPY_IN_FUSION_BUFFER", "SHM_ALLREDUCE"}) {
    CHECK(counts.begun[name] == 20);
  }
}

// Negotiations that something else ends: another tensor of the group, the removal of the set. Equal names of two sets.
void ended_by_others() {
  Folder folder;
  World world({{2}, 256, 1, {}, {{0, 1}}});
  Timeline& timeline = world.engine(0).timeline();
  CHECK(timeline.start(to(folder.file("a"))));
  const auto member = [&](int rank, int number, int size) {
    Request request = sum_of("g_" + std::to_string(number) + "of" + std::to_string(size));
    request.group_member = number, request.group_size = size;
    return world.submit(rank, request, std::vector<float>{1.0f});
  };
  CHECK(world.run_all({member(0, 2, 2), member(0, 1, 2), member(1, 1, 1)}));
  const auto first = world.submit(0, sum_of("same"), std::vector<float>{1.0f});
  const auto second = world.submit(0, sum_of("same", DataType::kFloat32, 1), std::vector<float>{1.0f});
  CHECK(!world.run([&] { return first->done || second->done; }));
  const auto third = world.submit(1, sum_of("same"), std::vector<float>{1.0f});
  const auto fourth = world.submit(1, sum_of("same", DataType::kFloat32, 1), std::vector<float>{1.0f});
  CHECK(world.run_all({first, second, third, fourth}));
  auto all = std::vector{world.submit(0, sum_of("left", DataType::kFloat32, 1), std::vector<float>{1.0f})};
  for (int rank = 0; rank < 2; ++rank) {
    Request request = of(Collective::kRemoveProcessSet, "process_sets");
    request.sizes = {1};
    all.push_back(world.submit(rank, request, std::vector<float>{}));
  }
  CHECK(world.run_all(all));
  timeline.stop();
  Counts counts = counts_of(folder.file("a"));
  CHECK(counts.unfinished == 0 && counts.begun["NEGOTIATE_ALLREDUCE"] == 5 && counts.begun["ALLREDUCE"] == 2);
}

// One of a random kind: good, mismatched, of another set, with a local error, submitted twice, groups of two sizes.
std::vector<std::shared_ptr<Outcome>> random_collective(World* world, int number) {
  std::vector<std::shared_ptr<Outcome>> all;
  const std::string name = "t" + std::to_string(number % 7);
  const int kind = static_cast<int>(world->random()() % 7);
  for (int rank = 0; rank < world->size(); ++rank) {
    Request request = sum_of(name, DataType::kFloat32, kind == 5 ? 1 : 0);
    const bool last = rank == world->size() - 1;
    if (kind == 5 && !world->engine(rank).process_sets().find(1)->contains(rank)) continue;
    if (kind == 1 && last) request.op = ReduceOp::kMax;
    if (kind == 2 && last) request.error = Status::invalid_argument("wrong \"on purpose\"");
    if (kind == 6) {
      const int size = last ? 1 : 3;
      for (int member = 1; member <= size; ++member) {
        request.name = name + '_' + std::to_string(member) + "of" + std::to_string(size);
        request.group_member = member, request.group_size = size;
        all.push_back(world->submit(rank, request, std::vector<float>(300, 1.0f)));
      }
      continue;
    }
    for (int times = kind == 3 ? 2 : 1; times > 0; --times) {
      all.push_back(world->submit(rank, request, std::vector<float>(300, 1.0f)));
    }
  }
  return all;
}

// Another file every few steps while everything is in flight: all of them together hold what one file would.
void switching() {
  for (unsigned seed = 1; seed <= 6; ++seed) {
    Folder folder;
    World world({{2, 1, 1}, 256, seed, {}, {{1, 3}}});
    Timeline& timeline = world.engine(0).timeline();
    int files = 0, negotiations = 0, good = 0;
    const auto next = [&] { CHECK(timeline.start(to(folder.file(std::to_string(files++))))); };
    next();
    for (int number = 0; number < 40; ++number) {
      auto all = submit_all(&world, sum_of("good"), 200);
      for (auto& one : random_collective(&world, number)) all.push_back(std::move(one));
      int left = 1 + static_cast<int>(world.random()() % 60);
      CHECK(world.run([&] {
        if (--left == 0) next();
        return std::all_of(all.begin(), all.end(), [](const auto& outcome) { return outcome->done; });
      }));
      for (int rank = 0; rank < world.size(); ++rank) CHECK(all[rank]->status.ok());
      ++good;
    }
    timeline.stop();
    Counts counts;
    for (int k = 0; k < files; ++k) counts.add(counts_of(folder.file(std::to_string(k))));
    CHECK(files > 20 && counts.unfinished > 0 && counts.lost == 0);
    for (const auto& [name, count] : counts.begun) negotiations += name.rfind("NEGOTIATE_", 0) == 0 ? count : 0;
    CHECK(counts.begun["ALLREDUCE"] >= good && negotiations >= counts.begun["ALLREDUCE"]);
    CHECK(counts.begun["ALLREDUCE"] == counts.begun["QUEUE"]);
  }
}

// The same on one file, exactly: what a file lacks is in the next.
void switching_is_exact() {
  Folder folder;
  World world({{2, 2}, 256, 3, {}, {}});
  Timeline& timeline = world.engine(0).timeline();
  int files = 0;
  for (int round = 0; round < 50; ++round) {
    auto all = submit_all(&world, sum_of("a"), 500);
    int steps = 0;
    CHECK(world.run([&] {
      if (steps++ % 5 == 0 && files < 100) CHECK(timeline.start(to(folder.file(std::to_string(files++)))));
      return std::all_of(all.begin(), all.end(), [](const auto& outcome) { return outcome->done; });
    }));
  }
  timeline.stop();
  Counts counts;
  for (int k = 0; k < files; ++k) counts.add(counts_of(folder.file(std::to_string(k))));
  CHECK(files == 100);
  CHECK(counts.begun["NEGOTIATE_ALLREDUCE"] == 50 && counts.begun["ALLREDUCE"] == 50 && counts.ready == 200);
}

// A thread starts and stops while the worker goes on.
void started_by_another_thread() {
  Folder folder;
  World world({{2}, 256, 1, {}, {}});
  std::atomic<bool> done{false};
  std::thread user([&] {
    for (int k = 0; !done; ++k) {
      CHECK(world.engine(0).timeline().start(to(folder.file(std::to_string(k % 2)))));
      if (k % 3 == 0) world.engine(0).timeline().stop();
    }
  });
  for (int round = 0; round < 300; ++round) CHECK(world.run_all(submit_all(&world, sum_of("x"), 100)));
  done = true;
  user.join();
  world.engine(0).timeline().stop();
  for (const char* name : {"0", "1"}) {
    if (access(folder.file(name).c_str(), F_OK) == 0) counts_of(folder.file(name));
  }
}

void always_an_array() {
  Folder folder;
  World world({{2}, 256, 1, {}, {}});
  CHECK(world.engine(0).timeline().start(to(folder.file("a"))));
  check_array(contents(folder.file("a")));
  size_t bytes = 0, looks = 0, torn = 0;
  for (int round = 0; round < 20000 && looks < 8; ++round) {
    CHECK(world.run_all(submit_all(&world, sum_of("x"), 10)));
    // The system may show half of a write, but not for long.
    std::string text = contents(folder.file("a"));
    for (int again = 0; again < 50 && text.substr(text.size() - 4) != "}\n]\n"; ++again) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      text = contents(folder.file("a"));
      ++torn;
    }
    check_array(text);
    looks += text.size() > bytes;
    bytes = text.size();
  }
  CHECK(looks == 8 && torn < 5);
}

// What the disk has not taken is bounded: phases are left out, whole, and counted.
void bounded_memory() {
  Folder folder;
  World world({{2}, 256, 1, {}, {}});
  TimelineOptions options = to(folder.file("a"));
  options.limit = 4096;
  CHECK(world.engine(0).timeline().start(options));
  for (int round = 0; round < 2000; ++round) CHECK(world.run_all(submit_all(&world, sum_of("x"), 10)));
  world.engine(0).timeline().stop();
  Counts counts = counts_of(folder.file("a"));
  CHECK(counts.lost > 0 && counts.begun["ALLREDUCE"] > 0 && counts.begun["ALLREDUCE"] < 2000);
}

void full_disk() {
  Folder folder;
  signal(SIGXFSZ, SIG_IGN);
  const rlimit limit{10000, RLIM_INFINITY};
  CHECK(setrlimit(RLIMIT_FSIZE, &limit) == 0);
  World world({{2}, 256, 1, {}, {}});
  CHECK(world.engine(0).timeline().start(to(folder.file("a"))));
  for (int round = 0; round < 200; ++round) CHECK(world.run_all(submit_all(&world, sum_of("x"), 10)));
  world.engine(0).timeline().stop();
  check_array(contents(folder.file("a")));
}

void no_file() {
  Folder folder;
  World world({{2}, 256, 1, {}, {}});
  Timeline& timeline = world.engine(0).timeline();
  CHECK(!timeline.start(to(folder.path())));
  CHECK(!timeline.start(to(folder.path() + "/missing/a")));
  CHECK(!timeline.start(to("")));
  CHECK(!timeline.on());
  timeline.stop();
  // What goes on is not disturbed, neither by a file that cannot be had nor by its own name.
  CHECK(timeline.start(to(folder.file("a"))));
  CHECK(!timeline.start(to(folder.path())));
  CHECK(world.run_all(submit_all(&world, sum_of("x"), 10)));
  CHECK(timeline.start(to(folder.path() + "/./a")));
  CHECK(world.run_all(submit_all(&world, sum_of("x"), 10)));
  timeline.stop();
  CHECK(counts_of(folder.file("a")).begun["ALLREDUCE"] == 2);
}

void escapes() {
  CHECK(json_string("a/b_1:0") == "\"a/b_1:0\"");
  CHECK(json_string("\"\\\n\t\x7f") == R"("\"\\\u000a\u0009\u007f")");
  CHECK(json_string(std::string("\0", 1)) == R"("\u0000")");
  CHECK(json_string("\xc3\xbc\xe2\x82\xac\xf0\x9f\x99\x82") == R"("\u00fc\u20ac\ud83d\ude42")");
  // Not UTF-8: a lone byte, a text that ends too early, overlong forms, a surrogate, beyond Unicode.
  CHECK(json_string("\xff"
                    "a") == R"("\ufffda")");
  CHECK(json_string("\xe2\x82") == R"("\ufffd\ufffd")");
  CHECK(json_string("\xc0\xaf") == R"("\ufffd\ufffd")");
  CHECK(json_string("\xe0\x80\xaf") == R"("\ufffd\ufffd\ufffd")");
  CHECK(json_string("\xed\xa0\x80") == R"("\ufffd\ufffd\ufffd")");
  CHECK(json_string("\xf4\x90\x80\x80") == R"("\ufffd\ufffd\ufffd\ufffd")");
}

}  // namespace

int main(int argc, char** argv) {
  return run_cases(argc, argv,
                   {{"phases", phases},
                    {"fused", fused},
                    {"ended_by_others", ended_by_others},
                    {"switching", switching},
                    {"switching_is_exact", switching_is_exact},
                    {"started_by_another_thread", started_by_another_thread},
                    {"always_an_array", always_an_array},
                    {"bounded_memory", bounded_memory},
                    {"full_disk", full_disk},
                    {"no_file", no_file},
                    {"escapes", escapes}});
}
