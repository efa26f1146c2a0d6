"""The classes of reported faults, K01 to K34, and the tests of this repository that hold each of them down."""

from __future__ import annotations

import ast
import re
from pathlib import Path

TESTS = Path(__file__).parents[1]

CLASSES: dict[str, str] = {
    "K01": "cases/test_packing.py::test_nothing_behind_a_short_chunk_is_read "
    "cases/test_packing.py::test_the_gate_gradient_survives_a_chunk_of_one_token",
    "K02": "cases/test_gates.py::test_decay_and_its_gradient_have_the_closed_form "
    "cases/test_gates.py::test_a_decay_of_minus_fifty_leaves_each_token_alone "
    "cases/test_gates.py::test_a_reset_forgets_everything_before_it "
    "cases/test_gates.py::test_after_a_reset_all_is_as_from_the_start "
    "cases/test_gates.py::test_no_decay_after_huge_decays_is_exactly_one "
    "cases/test_gates.py::test_a_gate_of_subnormal_size_is_exactly_one "
    "cases/test_gates.py::test_a_long_sequence_with_a_tail_has_the_closed_form "
    "cases/test_gates.py::test_a_long_run_may_be_cut_at_any_chunk "
    "test_layer_parts.py::test_a_mamba_gate_survives_a_huge_rate_beside_a_tiny_step "
    "test_errors.py::test_a_bad_argument_is_refused_by_name_and_value",
    "K03": "cases/test_gates_of_one.py::test_gates_of_one_are_no_gates "
    "cases/test_gates_of_one.py::test_gates_and_level_weights_of_one_are_none "
    "cases/test_gates_of_one.py::test_every_regime_of_gates_is_right "
    "cases/test_gates_of_one.py::test_a_repeated_key_reads_the_last_value",
    "K04": "cases/test_triangular.py::test_a_random_triangle_is_inverted_as_well_as_its_condition_allows "
    "cases/test_triangular.py::test_distinct_unit_vectors_need_no_inverse "
    "cases/test_triangular.py::test_keys_far_from_unit_length_are_graded_by_condition",
    "K05": "cases/test_sums.py::test_four_thousand_equal_terms_add_up_exactly "
    "cases/test_sums.py::test_second_moments_keep_their_smallest_eigenvalue "
    "cases/test_sums.py::test_squares_about_a_mean_of_zero_add_up",
    "K06": "cases/test_rank_one.py::test_n_identical_unit_keys_give_the_closed_form "
    "cases/test_rank_one.py::test_one_unit_key_with_a_tiny_ridge_keeps_its_digits "
    "cases/test_rank_one.py::test_zero_keys_leave_the_penalty_and_the_memory_alone "
    "cases/test_rank_one.py::test_without_keys_the_inverse_is_that_of_the_ridge "
    "cases/test_rank_one.py::test_a_tiny_ridge_and_repeated_keys_are_right "
    "cases/test_one_direction.py::test_the_closed_form_holds_for_every_token "
    "cases/test_hard_paths.py::test_strong_penalties_take_the_fallback_and_the_refinement",
    "K07": "cases/test_short_sequences.py::test_no_token_returns_the_state_bit_for_bit "
    "cases/test_short_sequences.py::test_up_to_seventeen_tokens_are_right "
    "cases/test_short_sequences.py::test_packed_with_empty_sequences_is_the_separate_runs "
    "cases/test_short_sequences.py::test_an_empty_sequence_passes_its_state_and_gradient_through "
    "cases/test_short_sequences.py::test_one_token_hands_the_gradient_of_the_state_on "
    "cases/test_short_sequences.py::test_pieces_of_one_and_two_tokens_are_the_whole_run "
    "test_layer_parts.py::test_the_window_of_a_short_piece_has_the_reported_right_gradients "
    "test_layer_parts.py::test_a_convolution_in_pieces_of_one_and_two_tokens_is_the_whole",
    "K08": "cases/test_state_carry.py::test_a_prefix_then_token_by_token_is_the_full_pass "
    "cases/test_state_carry.py::test_decoding_after_a_prefix_decays_once "
    "cases/test_state_carry.py::test_a_stored_state_is_keys_by_values "
    "cases/test_state_carry.py::test_a_fresh_token_reads_no_stale_memory "
    "cases/test_state_carry.py::test_a_packed_neighbour_gets_no_gradient "
    "test_layers.py::test_prefill_then_decode_is_the_whole_forward "
    "test_lm.py::test_prefill_then_decode_has_the_logits_of_the_whole_forward",
    "K09": "cases/test_packing.py::test_a_no_op_token_changes_no_value "
    "test_layers.py::test_rows_with_nan_pads_have_the_bits_of_rows_without "
    "test_lm.py::test_pads_of_any_value_leave_every_bit_of_a_row",
    "K10": "cases/test_batches.py::test_a_row_has_the_same_bits_alone_and_in_a_batch "
    "cases/test_batches.py::test_the_order_of_packed_sequences_does_not_matter",
    "K11": "cases/test_packing.py::test_rows_past_the_last_sequence_are_zero_and_get_zero_gradient",
    "K12": "cases/test_kernels.py::test_offsets_of_packed_sequences_are_not_read_on_the_host "
    "cases/test_kernels.py::test_a_graph_of_eight_slots_with_three_empty_replays_the_live_rows "
    "kernels/test_gla_kernels.py::test_packed_sequences_are_alone_and_rows_behind_the_last_are_zero",
    "K13": "cases/test_memory_layout.py::test_a_layout_of_each_input_gives_the_bits_of_the_contiguous_copy "
    "cases/test_memory_layout.py::test_an_expanded_input_is_its_copy "
    "cases/test_memory_layout.py::test_gradients_arrive_in_any_layout",
    "K14": "cases/test_kernels.py::test_an_address_beyond_31_bits_is_exact",
    "K15": "cases/test_batches.py::test_more_rows_than_a_launch_grid_has "
    "cases/test_batches.py::test_more_tokens_than_a_launch_grid_has "
    "cases/test_batches.py::test_more_packed_sequences_than_a_launch_grid_has",
    "K16": "cases/test_gradients.py::test_gradients_of_the_normalised_form_match_central_differences "
    "cases/test_short_sequences.py::test_up_to_seventeen_tokens_are_right "
    "cases/test_gradients.py::test_no_gradient_is_missing_or_zero "
    "cases/test_gradients.py::test_output_and_gradients_are_linear_in_a_power_of_two "
    "cases/test_gradients.py::test_every_scale_is_right",
    "K17": "cases/test_gradients.py::test_grouped_heads_equal_repeated_heads_and_share_gradients",
    "K18": "cases/test_widths.py::test_an_odd_key_width_is_the_padded_one "
    "cases/test_widths.py::test_an_odd_value_width_is_the_padded_one",
    "K19": "cases/test_memory_layout.py::test_a_layout_of_each_input_gives_the_bits_of_the_contiguous_copy "
    "cases/test_packing.py::test_nothing_behind_a_short_chunk_is_read",
    "K20": "cases/test_kernels.py::test_every_tile_gives_the_right_outputs_and_gradients",
    "K21": "cases/test_sums.py::test_ten_runs_give_the_same_bits",
    "K22": "cases/test_sums.py::test_ten_runs_give_the_same_bits",
    "K23": "cases/test_sums.py::test_a_product_keeps_the_bits_that_tf32_drops "
    "cases/test_sums.py::test_a_machine_wide_precision_changes_no_bit",
    "K24": "cases/test_kernels.py::test_a_product_of_small_integers_is_exact_in_either_mode "
    "cases/test_kernels.py::test_an_operand_is_rounded_to_nearest_even_in_either_mode "
    "cases/test_kernels.py::test_tensors_of_a_cpu_are_refused_without_the_interpreter "
    "harness/test_devices.py::test_a_kernel_is_judged_in_the_interpreter_and_its_records_say_so",
    "K25": "cases/test_sums.py::test_small_terms_behind_huge_ones_are_kept "
    "cases/test_sums.py::test_ten_runs_give_the_same_bits",
    "K26": "cases/test_modes.py::test_a_compiled_call_gives_the_bits_of_the_plain_one",
    "K27": "cases/test_modes.py::test_autocast_changes_no_bit "
    "cases/test_modes.py::test_a_float32_gate_goes_with_bfloat16_keys",
    "K28": "cases/test_causality.py::test_the_future_of_each_input_reaches_no_earlier_bit "
    "cases/test_causality.py::test_the_reported_shape_keeps_its_past",
    "K29": "cases/test_references.py::test_every_variant_is_right_with_all_sizes_distinct "
    "cases/test_gates_of_one.py::test_every_regime_of_gates_is_right "
    "test_levels.py::test_level_is_the_recursive_definition_for_all_tokens_to_2048 "
    "test_levels.py::test_the_oracle_is_the_double_sum "
    "test_layers_of_trust.py::test_any_number_of_chunks_equals_the_recurrence "
    "harness/test_detection.py::test_fault_is_seen "
    "harness/test_properties_can_fail.py::test_fault_turns_the_property_red "
    "harness/test_class_mutations.py::test_a_class_without_its_fix_turns_its_tests_red",
    "K30": "cases/test_references.py::test_twice_the_digits_change_no_digit_the_oracle_claims "
    "cases/test_references.py::test_every_number_enters_the_oracle_with_its_binary_value "
    "harness/test_oracle.py::test_precision_doubles_when_a_ball_meets_a_singular_matrix "
    "harness/test_oracle.py::test_disagreement_of_the_two_contexts_is_refused",
    "K31": "cases/test_references.py::test_property_tests_have_no_deadline "
    "cases/test_references.py::test_no_property_test_silences_the_check_of_its_fixtures",
    "K32": "benchmarks/test_filing.py::test_a_record_becomes_a_result_of_asv_beside_its_machine "
    "benchmarks/test_filing.py::test_a_commit_that_is_off_the_branch_or_missing_is_refused "
    "benchmarks/test_filing.py::test_an_object_as_a_parameter_is_refused "
    "benchmarks/test_filing.py::test_results_are_strict_json_without_addresses "
    "benchmarks/test_filing.py::test_what_failed_is_null_and_is_told_once "
    "benchmarks/test_filing.py::test_other_repetitions_make_no_number_of_the_series "
    "benchmarks/test_publishing.py::test_a_result_off_the_branch_is_an_error_by_name "
    "benchmarks/test_publishing.py::test_a_result_of_another_version_is_told "
    "benchmarks/test_suite.py::test_a_version_says_the_sampling "
    "benchmarks/test_suite.py::test_asv_itself_runs_the_suite",
    "K33": "experiments/test_tasks.py::test_a_lookup_table_answers_everything "
    "experiments/test_tasks.py::test_fillers_are_no_key_of_their_row_and_a_key_has_one_value "
    "experiments/test_tasks.py::test_fillers_that_repeat_keys_are_caught",
    "K34": "cases/test_references.py::test_one_head_that_cannot_be_factorised_leaves_the_others_alone "
    "cases/test_references.py::test_a_nan_direction_in_one_head_leaves_the_others_alone "
    "cases/test_references.py::test_a_matrix_that_is_not_positive_definite_never_passes",
}
"""Each class: the tests that cover it, separated by spaces, or "not applicable: reason"."""

STILL_TRUE: dict[str, list[str]] = {}
"""Why a class is not applicable: none of these files exists. When one does, the class needs tests."""


def unknown_tests(entry: str) -> list[str]:
    """The tests an entry names that no file defines."""
    found: list[str] = []
    for name in entry.split():
        path, _, function = name.partition("::")
        file = TESTS / path
        defined = ast.parse(file.read_text(encoding="utf-8")).body if file.is_file() else []
        if function not in {node.name for node in defined if isinstance(node, ast.FunctionDef)}:
            found.append(name)
    return found


def test_every_class_has_tests_or_a_reason():
    assert list(CLASSES) == [f"K{n:02}" for n in range(1, 35)]
    for name, entry in CLASSES.items():
        if entry.startswith("not applicable"):
            assert re.fullmatch(r"not applicable: .{20,}", entry), f"{name}: no reason"
        else:
            assert entry and not unknown_tests(entry), f"{name}: no such test: {unknown_tests(entry)}"


def test_the_reason_of_a_class_without_tests_is_still_true():
    without = {name for name, entry in CLASSES.items() if entry.startswith("not applicable")}
    assert without <= set(STILL_TRUE)
    for name in sorted(without):
        found = [path for pattern in STILL_TRUE[name] for path in sorted(TESTS.parent.glob(pattern))]
        assert not found, f"{name} is {CLASSES[name]!r}, but there is {found[0].relative_to(TESTS.parent)}"


def test_a_name_that_no_file_defines_is_noticed():
    names = "cases/test_sums.py::test_of_nothing cases/test_no_file.py::test_ten_runs_give_the_same_bits"
    assert unknown_tests(names) == names.split()


def test_every_test_here_belongs_to_a_class():
    named = {name for entry in CLASSES.values() for name in entry.split()}
    for file in sorted(Path(__file__).parent.glob("test_*.py")):
        used = any(name.startswith(f"cases/{file.name}::") for name in named)
        assert used or file.name == Path(__file__).name, f"{file.name} has no test in the table"
