"""Where the tests are for what was wrong in Horovod, and for what its users reported (BR-01 to BR-12).

Each entry names what went wrong there and the tests of what is right; a test here sees that those exist.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

TESTS = Path(__file__).parent

DEFECTS = {
    "a collective of constants is folded and communicates once": [
        "parallel/test_stateful.py::test_constants_and_equal_ops",
        "parallel/test_allreduce.py::test_constants_are_reduced_in_every_run",
    ],
    "a second join returns at once": [
        "parallel/test_join.py::test_unequal_steps_again_and_again",
        "parallel/test_join.py::test_result_is_an_int32_scalar",
    ],
    "a grouped op succeeds though one of its tensors failed": [
        "parallel/test_grouped.py::test_the_error_of_one_member_is_that_of_the_group",
    ],
    "slices in a group get the dense shape of another place": [
        "parallel/test_grouped.py::test_dense_and_sparse_in_their_places",
    ],
    "broadcast_object_fn fails on TensorFlow 2": ["parallel/test_objects.py::test_broadcast_object_fn"],
    "objects of different types, or one more call, change names and grow the graph": [
        "parallel/test_objects.py::test_graphs_do_not_grow",
    ],
    "averages of integers are one too low for some sizes": [
        "engine/collectives.cc::averages_of_equal_integers",
        "parallel/test_allreduce.py::test_negative_integers_average_toward_zero",
    ],
    "sums of halves overflow before the average": [
        "parallel/test_allreduce.py::test_averages_do_not_overflow",
        "parallel/test_allreduce.py::test_float16_sums_accumulate_in_float32",
    ],
    "factors of float64 are rounded to float32": [
        "parallel/test_allreduce.py::test_scale_factors_are_exact_for_float64",
    ],
    "Min, Max and Product have the gradient of another function": [
        "parallel/test_gradients.py::test_extrema_belong_to_the_ranks_that_held_them",
        "parallel/test_gradients.py::test_product",
    ],
    "averages divide by ranks that have joined, whose zeros enter Min and Product": [
        "parallel/test_join.py::test_unequal_steps_again_and_again",
        "engine/more.cc::joins",
    ],
    "local variables of an optimizer in graph mode, and gradients that are None while aggregating, raise": [
        "parallel/test_optimizer.py::test_local_variables_stay_unreduced",
        "parallel/test_aggregation.py::test_local_variables_are_aggregated_and_stay_unreduced",
        "parallel/test_aggregation.py::test_none_gradients",
    ],
    "an optimizer can be wrapped twice": ["parallel/test_optimizer.py::test_wrong_arguments"],
    "alltoall drops rows, and takes negative splits": [
        "parallel/test_alltoall.py::test_wrong_splits_of_one_rank_are_an_error_on_every_rank",
    ],
    "counts beyond 2^31 overflow": ["launched/test_large.py::test_more_than_two_gib"],
    "init(comm=[ranks]) takes all ranks where this one is not listed": [
        "parallel/test_mpi4py.py::test_list_of_ranks",
    ],
    "broadcasts in place hold TensorFlow's threads, and go on writing after an error": [
        "parallel/test_broadcast_inplace.py::test_one_thread_and_orders_of_their_own",
        "parallel/test_broadcast_inplace.py::test_a_variable_of_another_shape_is_an_error_on_every_rank",
    ],
    "an error on one rank leaves the others waiting": [
        "parallel/test_errors.py::test_root_out_of_range_on_one_rank",
        "engine/failures.cc::local_error_reaches_late_ranks",
        "launched/test_fuzz.py::test_some_random_programs",
    ],
    "groups of different sizes wait for ever": [
        "parallel/test_grouped.py::test_groups_of_different_sizes_are_an_error_at_once",
        "engine/failures.cc::groups_of_different_sizes",
    ],
    "two ranks that trace in opposite orders wait for each other": [
        "parallel/test_eager.py::test_function_leaves_the_order_open",
        "parallel/test_grouped.py::test_functions_traced_in_opposite_orders",
    ],
    "an optimizer with Adasum never communicates, and Adasum of a group fails": [
        "parallel/test_adasum_optimizer.py::test_several_steps",
        "parallel/test_adasum.py::test_many_tensors_at_once_keep_their_own_dot_products",
    ],
    "the gradient of Adasum is that of another function": ["parallel/test_adasum.py::test_gradient"],
    "op= and groups= of a Keras optimizer are dropped": [
        "parallel/test_keras_optimizer.py::test_arguments",
        "parallel/test_keras_optimizer.py::test_groups_become_grouped_ops",
    ],
    "apply_gradients of a Keras optimizer in a loop of one's own reduces nothing": [
        "parallel/test_keras_optimizer.py::test_each_gradient_is_reduced_once_on_every_way",
    ],
    "wrapping a Keras optimizer loses its state, and wrapping it twice recurses": [
        "parallel/test_keras_optimizer.py::test_state_and_class_are_those_of_the_wrapped_optimizer",
        "parallel/test_keras_optimizer.py::test_wrapping_twice_is_an_error",
    ],
    "elastic.run swallows errors of others, and sync() sends nothing in eager mode": [
        "parallel/test_elastic.py::test_errors_of_others_pass",
        "parallel/test_elastic.py::test_sync_gives_everyone_what_rank_0_has_now",
    ],
    "BR-01": ["parallel/test_allreduce.py::test_average_is_taken_exactly_once"],
    "BR-02": ["parallel/test_optimizer.py::test_embedding"],
    "BR-03": ["parallel/test_optimizer.py::test_none_gradients_and_clipping_after_the_reduction"],
    "BR-04": ["launched/test_br04.py::test_each_rank_knows_its_world"],
    "BR-05": ["parallel/test_broadcast_variables.py::test_hook_serves_graphs_and_sessions"],
    "BR-06": ["launched/test_br06.py::test_restore_on_rank_0_then_broadcast_then_retrain_at_the_limit"],
    "BR-07": ["parallel/test_order.py::test_two_hundred_tensors_in_rank_specific_order_on_one_thread"],
    "BR-08": ["launched/test_br08.py::test_a_rank_that_ends_early_is_an_error_for_the_others"],
    "BR-09": ["parallel/test_errors.py::test_mismatches"],
    "BR-10": [
        "parallel/test_broadcast_variables.py::test_every_dtype_and_shape",
        "parallel/test_broadcast_variables.py::test_strings_are_left_out_with_one_warning",
    ],
    "BR-11": [
        "parallel/test_mpi4py.py::test_streams_of_both_do_not_mix",
        "parallel/test_mpi4py.py::test_split_world",
    ],
    "BR-12": [
        "launched/test_timeline.py::test_a_job_without_collectives_leaves_json",
        "launched/test_timeline.py::test_every_collective_is_negotiated_and_executed",
        "launched/test_timeline.py::test_a_file_that_cannot_be_written_is_one_warning",
    ],
}


def names_in(path: Path) -> set[str]:
    """Of the test functions of a Python file, or the cases of an engine test."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".cc":
        return {line.split('"')[1] for line in text.split("int main(")[1].splitlines() if '{"' in line}
    return {node.name for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("defect", DEFECTS)
def test_there_is_a_test(defect: str) -> None:
    for test in DEFECTS[defect]:
        file, name = test.split("::")
        assert name in names_in(TESTS / file), f"{test} is gone; what tests that {defect!r} does not happen now?"
