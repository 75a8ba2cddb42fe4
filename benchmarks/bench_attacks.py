"""Runs attacks by name, each with an aim, an obstacle and a test.

make bench NAME=attacks           runs the tests of all attacks
make bench NAME=attacks QUICK=1   those that start no router and no Airflow

An attack is held where its test ran and passed. What an attack that is not held got counts by what it was
after: code run that the ledger does not hold, a secret seen, a verdict or a record changed, a night stopped.
Memory is what the test took at its peak, with all processes that it started (benchmarks/peak_memory.py), and
is held against the bound of its row.
"""

from typing import Literal, NamedTuple

from benchmarks.frame import QUICK, Target, finish, table, tested
from benchmarks.peak_memory import PROPERTY
from tests.extensions.router.test_limits import PATHS_OF_STRANGERS
from tests.registry.test_system_calls import ARCHITECTURES, DENIED
from tests.security.test_escapes import WAYS
from tests.security.test_left_files import WHAT
from tests.security.test_parser import BOMBS

After = Literal["code", "secret", "verdict", "night"]
MOST_MB = 400.0  # of a row, where BOUNDS_MB has no more
ROUTER = ("tests/extensions/router/", "tests/serving/")
SLOW = (
    "tests/dags/",
    "tests/extensions/router/test_router.py",
    "tests/extensions/router/test_connections.py",
    "tests/extensions/router/test_server.py",
)


class Attack(NamedTuple):
    """Something that somebody who may not might try."""

    name: str
    after: After
    stopped_by: str
    test: str  # node id

    @property
    def is_of_router(self) -> bool:
        """Whether it is tried on a router, or on a version as one runs it."""
        return self.test.startswith(ROUTER)

    @property
    def bound_mb(self) -> float:
        """The most memory that the row may take."""
        return next((mb for test, mb in BOUNDS_MB.items() if self.test.startswith(test)), MOST_MB)


TAMPERED = (
    "tests/security/test_tampered.py::test_a_router_and_the_gate_run_nothing_that_was_put_into_a_version"
)
FETCHED = "tests/security/test_artifact_files.py::test_"
PLACED = "tests/security/test_locations.py::test_no_stage_asks_a_place_that_only_mlflow_names"
WORDS, PAGES = "tests/security/test_words.py::test_", "tests/security/test_pages.py::test_"
FILES, ARCHIVES = "tests/security/test_files.py::test_", "tests/security/test_archives.py::test_"
QUERIES, PARAMS = "tests/security/test_queries.py::test_", "tests/security/test_params.py::test_"
VERSIONS, TAMPER = "tests/security/test_versions.py::test_", "tests/security/test_tampered.py::test_"
CONNECTIONS, COMPOSE = "tests/extensions/router/test_connections.py::test_", "tests/test_compose.py::test_"
LEFT = "tests/security/test_left_files.py::test_"
ERASURES = "tests/storage/test_erasures.py::test_"
ENVIRONMENT = "tests/contract/test_environment.py::test_"
CODE, OF_ROUTER = (
    "tests/registry/test_carried_code.py::test_",
    "tests/extensions/router/test_router.py::test_",
)
LIMITS = "tests/extensions/router/test_limits.py::test_"
ASKED = "tests/serving/test_version_process.py::test_"
NO_REPLY = "its process was ended, since it did not send a valid reply"
CALLS = "tests/registry/test_system_calls.py::test_"
ODD = "tests/test_odd_homes.py::test_"
# Of rows whose test starts processes that import torch, or many at once: by how their tests begin.
BOUNDS_MB = {
    "tests/extensions/router/test_router.py": 600.0,
    "tests/extensions/router/test_server.py": 1000.0,
    "tests/dags/": 700.0,
    "tests/storage/test_mlflow_login.py": 900.0,
    "tests/security/test_escapes.py": 1000.0,  # as many processes as a version may start
    "tests/security/test_artifact_files.py": 1200.0,
    "tests/extensions/care/test_repair.py": 1400.0,
    f"{FILES}json_of_a_million_levels": 700.0,
    "tests/security/test_parser.py": 3300.0,  # makes files of a gigabyte
    "tests/backends/test_contract.py": 3500.0,  # workers of several jobs
    TAMPERED: 3300.0,  # a night from register to gate
    ODD: 3500.0,  # nights
}

ATTACKS = [
    # By who may write to MLflow's store.
    Attack(
        "model.json names subprocess:Popen", "code", "digest in the ledger", f"{TAMPERED}[name_a_callable]"
    ),
    Attack(
        "a line is put into served.py", "code", "digest in the ledger", f"{TAMPERED}[change_what_mlflow_runs]"
    ),
    Attack("a module in code.zip is changed", "code", "digest in the ledger", f"{TAMPERED}[change_the_code]"),
    Attack("a module is added to code.zip", "code", "digest in the ledger", f"{TAMPERED}[add_a_module]"),
    Attack(
        "numpy.py is put beside code.zip",
        "code",
        "a name that the ledger does not have",
        f"{TAMPER}a_file_that_the_ledger_does_not_name_is_not_fetched",
    ),
    Attack(
        "a workload outside of the version's code",
        "code",
        "names resolve in its own code only",
        f"{CODE}a_workload_that_the_version_does_not_carry_is_not_resolved",
    ),
    Attack(
        "a version that no night made",
        "code",
        "not in the ledger",
        f"{TAMPER}a_version_that_no_night_made_is_not_served",
    ),
    Attack(
        "a pickle in the archive of code",
        "code",
        "names of pickles are refused",
        f"{TAMPER}an_archive_that_holds_a_pickle_or_is_none_is_refused",
    ),
    Attack(
        "an old version replayed, files swapped",
        "verdict",
        "digest in the ledger",
        f"{VERSIONS}an_old_version_under_a_new_number_and_swapped_files_are_refused",
    ),
    Attack(
        "the source of a version is moved",
        "verdict",
        "digest in the ledger",
        f"{VERSIONS}a_version_whose_source_was_pointed_at_another_is_refused",
    ),
    *(
        Attack(f"the files of a version are moved to {where}", "secret", "not a place of the home", PLACED)
        for where in ("another host", "another bucket", "a folder of the user", "..", "another run")
    ),
    Attack(
        "an experiment names another host for what nights write",
        "secret",
        "not a place of the home",
        "tests/security/test_locations.py::test_a_night_writes_to_no_place_that_only_an_experiment_names",
    ),
    Attack(
        "a server sends 400 MB for a file of a version",
        "night",
        "read no further than the size in the ledger",
        f"{FETCHED}a_server_sends_no_more_than_the_ledger_has_and_is_asked_for_its_names_alone",
    ),
    Attack(
        "a server redirects to another host",
        "secret",
        "no redirect is followed",
        f"{FETCHED}a_server_that_redirects_has_nobody_asked_there",
    ),
    Attack(
        "a link among a version's files",
        "secret",
        "links and other digests are refused",
        f"{VERSIONS}a_link_among_the_files_of_a_version_is_refused",
    ),
    Attack(
        "alias, tags and description are forged",
        "verdict",
        "the ledger says who serves",
        f"{VERSIONS}nobody_who_writes_to_mlflow_decides_which_version_serves",
    ),
    Attack(
        "code of a version in the gate looks around",
        "secret",
        "a process without secrets or network",
        "tests/registry/test_confined.py::"
        "test_code_of_a_version_sees_no_secret_of_its_parent_and_reaches_no_network",
    ),
    Attack(
        "code of a version in a router looks around",
        "secret",
        "a process without secrets or network",
        "tests/serving/test_version_process.py::test_a_version_sees_no_secret_and_reaches_nothing",
    ),
    Attack(
        "code of a version harms its process",
        "night",
        "its process alone ends",
        "tests/serving/test_version_process.py::"
        "test_a_version_that_harms_its_process_gives_no_answer_and_no_later_one",
    ),
    Attack(
        "zip slip in an archive of code",
        "code",
        "names stay inside",
        f"{CODE}an_archive_writes_nothing_outside_of_the_folder",
    ),
    Attack(
        "a link in an archive of code",
        "secret",
        "is unpacked as a file",
        f"{ARCHIVES}a_link_in_an_archive_of_code_is_unpacked_as_a_file",
    ),
    Attack(
        "a file twice in an archive of code",
        "code",
        "digest in the ledger",
        f"{ARCHIVES}an_archive_that_names_a_file_twice_is_not_the_one_that_the_ledger_has",
    ),
    Attack(
        "a bomb as an archive of code",
        "night",
        "digest before unpacking",
        f"{ARCHIVES}a_bomb_of_zeros_or_of_names_is_refused_before_it_is_unpacked",
    ),
    # By who may write to the ledger's branch, or to a checkpoint.
    Attack(
        "the ledger's branch is deleted",
        "verdict",
        "MLflow and reflog know of a champion",
        "tests/rollout/test_lost_ledger.py::test_a_ledger_that_was_deleted_is_refused_and_named_until_it_is_back",
    ),
    Attack(
        "the ledger's branch is cut back",
        "verdict",
        "MLflow's tag on the newest version",
        "tests/rollout/test_lost_ledger.py::test_a_ledger_that_was_reset_behind_the_champion_is_refused",
    ),
    Attack(
        "cut back behind a night without release",
        "verdict",
        "MLflow's tag on the newest version",
        "tests/rollout/test_lost_ledger.py::"
        "test_a_ledger_that_was_reset_behind_a_night_that_promoted_nothing_is_refused",
    ),
    Attack(
        "the pushed ledger is another one",
        "verdict",
        "heads are compared, nothing is overwritten",
        "tests/rollout/test_ledger_copy.py::"
        "test_a_remote_that_is_ahead_or_diverged_is_an_alarm_and_is_not_overwritten",
    ),
    Attack(
        "a stranger's commit, where the ledger is signed",
        "verdict",
        "signatures of git",
        "tests/storage/test_signatures.py::"
        "test_a_ledger_that_a_stranger_wrote_is_not_acted_upon_and_the_way_back_is_named",
    ),
    Attack(
        "a note of git says which other code a version has",
        "code",
        "erasures are in the ledger",
        f"{ERASURES}no_note_beside_the_ledger_chooses_the_code_of_a_version",
    ),
    Attack(
        "an erasure that nobody signed, where the ledger is signed",
        "code",
        "signatures of git",
        f"{ERASURES}an_erasure_that_nobody_signed_has_no_effect_where_signatures_are_required",
    ),
    Attack(
        "an erasure is cut off the ledger",
        "verdict",
        "the file of the key names it",
        f"{ERASURES}a_ledger_that_lost_an_erasure_lets_nobody_in_again",
    ),
    Attack(
        "records of the ledger with a wrong chain",
        "verdict",
        "audit of the chain",
        "tests/extensions/lineage/test_provenance.py::"
        "test_the_chain_of_a_sound_ledger_has_no_fault_and_a_forged_one_has",
    ),
    Attack(
        "the newest entry of the ledger is rewritten",
        "verdict",
        "the copy at the remote",
        "tests/rollout/test_ledger_copy.py::"
        "test_a_remote_that_is_ahead_or_diverged_is_an_alarm_and_is_not_overwritten",
    ),
    Attack(
        "MLflow's database is deleted",
        "verdict",
        "is not made anew by who reads",
        "tests/storage/test_mlflow_client.py::test_a_lost_database_is_one_sentence_and_is_not_created_again",
    ),
    Attack(
        "a poisoned object in the DVC cache",
        "verdict",
        "its digest when it is restored",
        "tests/storage/test_snapshots.py::test_a_damaged_file_of_the_cache_is_not_restored_without_a_word",
    ),
    Attack(
        "a changed page of a partition",
        "verdict",
        "checksums of pages, digests of files",
        "tests/extensions/care/test_repair.py::test_a_page_of_a_partition_that_was_changed_is_not_read",
    ),
    Attack(
        "tonight's files changed after they were written",
        "verdict",
        "are read again before use",
        "tests/extensions/care/test_repair.py::test_what_tonight_wrote_is_read_again_before_a_stage_uses_it",
    ),
    Attack(
        "a torn or changed checkpoint",
        "verdict",
        "manifest of hashes",
        "tests/training/test_checkpoint.py::test_a_torn_or_tampered_one_is_skipped_with_a_warning",
    ),
    Attack(
        "a pickle as a checkpoint, hashes right",
        "code",
        "only safetensors are read",
        f"{FILES}a_checkpoint_of_pickles_runs_nothing_also_where_its_hashes_agree",
    ),
    Attack(
        "arrays that are pickles",
        "code",
        "allow_pickle is never on",
        f"{FILES}an_array_that_is_a_pickle_is_not_loaded",
    ),
    Attack(
        "weights that claim to be huge",
        "night",
        "the header is checked before memory is taken",
        f"{FILES}weights_that_claim_to_be_huge_are_refused",
    ),
    # By who delivers data.
    Attack(
        "a link out of the source's folder",
        "secret",
        "links stay inside",
        f"{FILES}a_link_out_of_the_folder_has_no_other_file_read",
    ),
    Attack(
        "a folder that is a link",
        "secret",
        "is not listed",
        f"{FILES}a_folder_that_is_a_link_has_no_file_elsewhere_read",
    ),
    Attack(
        "a pipe or a device as a file",
        "night",
        "only files are opened",
        f"{FILES}what_is_no_file_is_refused_and_not_waited_for",
    ),
    Attack(
        "a gzip bomb as a file of a day",
        "night",
        "source.max_gb",
        f"{FILES}a_gzip_bomb_is_unpacked_no_further_than_a_file_may_be",
    ),
    Attack(
        "a parquet bomb as a file of a day",
        "night",
        "source.max_gb by the file's own count",
        f"{FILES}a_parquet_bomb_is_refused_by_its_number_of_rows",
    ),
    Attack(
        "JSON of a million levels",
        "night",
        "the reader's limit",
        f"{FILES}json_of_a_million_levels_is_one_sentence",
    ),
    Attack(
        "a column's name as Python, by init",
        "code",
        "names are literals",
        "tests/security/test_new_home.py::test_no_name_of_a_column_is_run_by_the_module_that_init_writes",
    ),
    Attack(
        "a column's name as SQL in a rule",
        "secret",
        "names are quoted",
        f"{QUERIES}rules_judge_a_column_of_a_hostile_name_and_read_no_other_file",
    ),
    Attack(
        "a column's name as SQL in a source",
        "verdict",
        "names are quoted",
        f"{QUERIES}the_names_of_columns_and_what_they_hold_are_no_query",
    ),
    Attack(
        "a table's name as SQL", "verdict", "names are quoted", f"{QUERIES}the_name_of_a_table_is_no_query"
    ),
    Attack(
        "HTML in columns, rules and types: Data Docs",
        "code",
        "names are escaped",
        f"{PAGES}data_docs_run_nothing_that_a_column_a_rule_or_a_type_is_called",
    ),
    Attack(
        "HTML in every text of a night: report, board",
        "code",
        "templates escape",
        f"{PAGES}the_page_of_a_night_and_the_board_run_nothing_that_a_record_says",
    ),
    Attack(
        "markup in names and reasons: MLflow's page",
        "verdict",
        "names are escaped",
        f"{PAGES}the_page_of_a_version_shows_names_and_reasons_as_they_are",
    ),
    Attack(
        "a formula in predictions as CSV",
        "code",
        "a quote before it",
        f"{FILES}text_of_predictions_is_no_formula_of_a_spreadsheet",
    ),
    # By who may write to the bucket of jobs.
    Attack(
        "a name in whole.json leads out",
        "code",
        "names stay inside",
        f"{ARCHIVES}a_list_of_files_in_a_bucket_cannot_name_files_elsewhere",
    ),
    Attack(
        "a path in needs.json leads out",
        "code",
        "names stay inside",
        f"{ARCHIVES}what_a_job_needs_cannot_be_put_elsewhere_on_its_machine",
    ),
    Attack(
        "a key with .. among what a job left",
        "code",
        "names stay inside",
        f"{ARCHIVES}a_job_cannot_leave_files_elsewhere_at_home",
    ),
    Attack(
        "brackets without end in a line of a job",
        "night",
        "is passed over, as a torn line",
        f"{ARCHIVES}brackets_without_end_in_a_record_or_a_line_are_no_crash",
    ),
    # By who may answer or start something in Airflow, or types a reason.
    Attack(
        "trailers and line ends in a reason",
        "verdict",
        "a subject is one line",
        f"{WORDS}no_reason_breaks_the_ledger_or_forges_what_it_says",
    ),
    Attack(
        "a subject that Python takes for lines",
        "night",
        "fields apart by NUL",
        f"{WORDS}a_commit_with_a_line_end_of_another_kind_in_its_subject_is_read",
    ),
    Attack(
        "options and paths as a night's name",
        "code",
        "a pattern of names",
        f"{WORDS}the_name_of_a_night_is_no_option_no_path_and_no_command",
    ),
    Attack(
        "tags of YAML in params and --set", "code", "the safe loader", f"{PARAMS}a_tag_of_yaml_runs_nothing"
    ),
    Attack(
        "a billion laughs in params.yaml",
        "night",
        "values are counted",
        f"{PARAMS}aliases_that_repeat_each_other_are_refused_at_once",
    ),
    Attack(
        "commands in a notifier's message",
        "code",
        "the message is its input",
        f"{PARAMS}a_notifier_is_given_the_message_as_its_input_and_never_as_words",
    ),
    Attack(
        "a webhook's address in a log",
        "secret",
        "the command is not told",
        f"{PARAMS}the_address_of_a_webhook_is_in_no_log",
    ),
    Attack(
        "a password in a source's URL in a log",
        "secret",
        "addresses are told without it",
        "tests/data/test_source.py::test_what_an_address_carries_is_in_no_log_and_no_record",
    ),
    Attack(
        "commands in the form of a night",
        "code",
        "values of variables, never text",
        "tests/dags/test_retrain.py::"
        "test_the_form_reaches_the_command_line_word_by_word_and_nothing_in_it_is_run",
    ),
    Attack(
        "commands in the form of a rollback",
        "code",
        "values of variables, never text",
        "tests/dags/test_retrain.py::"
        "test_the_form_of_a_rollback_reaches_the_command_line_and_nothing_in_it_is_run",
    ),
    Attack(
        "markup in Airflow's question",
        "verdict",
        "names are escaped",
        f"{PAGES}the_question_in_airflow_shows_names_and_reasons_as_they_are",
    ),
    Attack(
        "an approval of what the gate failed",
        "verdict",
        "a failed gate stands",
        "tests/gate/test_review.py::test_a_failed_gate_cannot_be_overridden_and_a_closed_night_not_reopened",
    ),
    Attack(
        "an answer to another verdict, or late",
        "verdict",
        "an answer names its verdict",
        "tests/gate/test_review.py::test_only_a_proof_or_a_persons_word_on_this_verdict_promotes",
    ),
    # By who may call the router.
    Attack(
        "wrong, oversized and unpaired bodies",
        "night",
        "limits of bodies",
        f"{OF_ROUTER}what_is_asked_wrongly_is_refused_in_a_sentence",
    ),
    Attack(
        "a body that does not say its size",
        "night",
        "is counted as it comes",
        f"{OF_ROUTER}a_body_that_does_not_say_its_size_is_limited_as_it_comes",
    ),
    Attack(
        "requests without the token, too many",
        "night",
        "token and rate",
        f"{OF_ROUTER}who_asks_needs_the_token_and_keeps_to_the_rate",
    ),
    Attack(
        "users, items and experiments as SQL",
        "verdict",
        "values are bound",
        f"{QUERIES}no_user_item_or_experiment_is_a_query_in_the_traffic_log",
    ),
    Attack(
        "files of a version changed under a router",
        "code",
        "digest in the ledger",
        f"{OF_ROUTER}a_version_that_is_not_what_was_registered_is_never_served",
    ),
    Attack(
        "half-open connections of one address",
        "night",
        "a bound of connections per address",
        f"{CONNECTIONS}half_open_connections_of_one_address_leave_the_router_to_the_others",
    ),
    Attack(
        "headers that trickle or never end",
        "night",
        "a limit of time on headers",
        f"{CONNECTIONS}headers_that_trickle_or_never_end_are_cut_off",
    ),
    Attack(
        "answers that nobody reads",
        "night",
        "a limit of time on an answer",
        f"{CONNECTIONS}a_client_that_does_not_read_its_answers_is_cut_off",
    ),
    Attack(
        "rows of a team's own serving without a token",
        "verdict",
        "they are refused",
        f"{OF_ROUTER}rows_of_a_team_are_refused_without_a_metric_and_without_a_token",
    ),
    Attack(
        "the alias is moved under a new router",
        "verdict",
        "it asks the ledger",
        f"{OF_ROUTER}the_champion_of_the_ledger_answers_where_the_traffic_names_none",
    ),
    Attack(
        "connections until all places are taken",
        "night",
        "the address that holds most makes room",
        f"{CONNECTIONS}once_all_places_are_taken_the_address_that_holds_most_makes_room",
    ),
    Attack(
        "X-Forwarded-For written by a client",
        "night",
        "only what trusted proxies add is believed",
        f"{CONNECTIONS}a_client_cannot_say_for_whom_a_request_is",
    ),
    Attack(
        "an outcome of another user's exposure",
        "verdict",
        "an exposure is bound to its user",
        f"{OF_ROUTER}only_the_user_who_saw_an_exposure_can_tell_its_outcome",
    ),
    Attack(
        "an outcome told without the token",
        "verdict",
        "the token",
        f"{OF_ROUTER}where_a_token_is_set_outcomes_come_from_its_holders_only",
    ),
    Attack(
        "a canary through the router",
        "secret",
        "no answer, log or file has it",
        "tests/extensions/router/test_server.py::test_no_secret_of_the_router_is_in_its_answers_its_log_or_its_home",
    ),
    # By who holds one service of compose.yaml.
    Attack(
        "the secrets of other services",
        "secret",
        "each holds its own",
        f"{COMPOSE}each_service_holds_its_own_secrets_and_uses_all_that_it_holds",
    ),
    Attack(
        "a password that everybody knows",
        "secret",
        "none has a default",
        f"{COMPOSE}no_password_stands_in_compose_and_none_has_a_default",
    ),
    Attack(
        "rights of a container",
        "code",
        "read-only, without capabilities",
        f"{COMPOSE}containers_have_no_rights_that_they_do_not_need",
    ),
    Attack(
        "the database of another role",
        "verdict",
        "each role has its own",
        f"{COMPOSE}each_role_has_its_own_database_and_no_other",
    ),
    Attack(
        "Airflow of make up without a password",
        "verdict",
        "a password that is made here",
        "tests/dags/test_login.py::test_airflow_of_make_up_asks_for_a_password_that_is_made_here",
    ),
    Attack(
        "a router that writes to MLflow",
        "verdict",
        "it may only read",
        "tests/storage/test_mlflow_login.py::test_who_holds_the_password_writes_and_a_router_only_reads",
    ),
    Attack(
        "an unpickler, eval or shell in our code",
        "code",
        "there is none but notify.command",
        f"{PARAMS}nothing_of_ours_unpickles_evaluates_text_or_builds_a_command_of_the_shell",
    ),
    Attack(
        "a page of a stranger asks a router on loopback",
        "verdict",
        "names of Host and Origin",
        "tests/extensions/router/test_router.py::test_a_page_of_a_stranger_asks_nothing_by_a_name_that_leads_here",
    ),
    *(
        Attack(
            f"a page of a stranger asks a router on loopback for {path}, by its {header}",
            "secret",
            "names of Host and Origin",
            f"{LIMITS}no_path_answers_a_page_of_a_stranger[{header}-{path}]",
        )
        for path in PATHS_OF_STRANGERS
        for header in ("Host", "Origin")
    ),
    Attack(
        "which models there are, and why one failed, without the token",
        "secret",
        "the token",
        f"{LIMITS}what_a_front_knows_of_its_models_is_for_those_who_may_ask",
    ),
    Attack(
        "requests without end for models that are not there",
        "night",
        "the same rate",
        f"{LIMITS}paths_of_no_model_have_the_same_rate",
    ),
    Attack(
        "requests that change a home by its pages",
        "verdict",
        "they only read, but for rows that they keep",
        "tests/extensions/pages/test_night_pages.py::"
        "test_nothing_but_the_rows_of_figures_is_changed_by_any_request",
    ),
    # By what a connection to the router sends, without a token.
    *(
        Attack(
            f"one connection sends without end: {what}",
            "night",
            "bytes, headers and requests are counted",
            "tests/extensions/router/test_connection_bytes.py::"
            f"test_whoever_sends_without_end_is_refused_and_nothing_is_kept[{what}]",
        )
        for what in ("trailers", "a long trailer", "a long header", "headers", "requests", "extensions")
    ),
    # By the code of a version, which runs for as long as it serves.
    *(
        Attack(
            f"code of a version: {way}",
            "code",
            "namespaces, Landlock, a filter of system calls",
            f"tests/security/test_escapes.py::test_no_way_leads_out_of_the_process_of_a_version[{way}]",
        )
        for way in WAYS
    ),
    *(
        Attack(
            f"a denied call, on both machines: {name}",
            "code",
            "a filter of system calls",
            f"{CALLS}a_call_is_denied_on_both_machines_whatever_its_arguments_are[{name}]",
        )
        for name in DENIED
    ),
    *(
        Attack(
            f"calls of another architecture on {machine}",
            "code",
            "the process ends",
            f"{CALLS}calls_by_the_numbers_of_another_architecture_end_the_process[{machine}]",
        )
        for machine in ARCHITECTURES
    ),
    *(
        Attack(
            f"a version sends {what}",
            "night",
            "replies are bounded by what is asked",
            f"{ASKED}a_version_that_harms_its_process_gives_no_answer_and_no_later_one[{test}]",
        )
        for what, test in (
            ("five million lists", f"bare-{NO_REPLY}"),
            ("items of a megabyte", f"swells-{NO_REPLY}"),
            ("a million levels", f"nests-{NO_REPLY}"),
            ("the length of 4 GB", f"floods-{NO_REPLY}"),
        )
    ),
    *(
        Attack(
            f"more than half a million {nest} in a reply of a version",
            "night",
            "lists and objects are counted before it is parsed",
            f"{ASKED}a_short_document_that_would_take_all_memory_is_not_parsed[{nest}]",
        )
        for nest in ("[]", "{}")
    ),
    Attack(
        "a version fills what the router keeps of answers",
        "night",
        "of long items, fewer users' are kept",
        f"{ASKED}answers_that_are_kept_take_no_more_memory_where_their_items_are_long",
    ),
    Attack(
        "items that are too many, too long or none",
        "night",
        "replies are checked",
        f"{ASKED}what_is_no_answer_is_not_taken_for_one_and_the_next_is",
    ),
    *(
        Attack(
            f"code of a version writes over the log of its parent, a {log}",
            "verdict",
            "its prints come through a pipe of its own",
            "tests/registry/test_host.py::"
            f"test_the_code_of_a_version_adds_to_the_log_and_changes_no_line_of_another[{log}]",
        )
        for log in ("file", "pipe")
    ),
    Attack(
        "code of a version leaves a process behind",
        "code",
        "its namespace ends with it",
        "tests/security/test_escapes.py::test_nothing_that_a_version_started_lives_on",
    ),
    Attack(
        "a confined process asks for a stage",
        "secret",
        "a warm parent serves its like alone",
        "tests/test_warm_parent.py::"
        "test_a_process_that_may_gain_no_privileges_has_no_command_run_by_the_parent",
    ),
    *(
        Attack(
            f"a version leaves {what} where it is to write a file",
            "secret",
            "no link is followed, only a file opened",
            f"{LEFT}of_what_a_version_left_only_a_file_is_opened[{what}]",
        )
        for what in WHAT
    ),
    *(
        Attack(
            f"predictions that are {what}",
            "secret",
            "no link is followed, only a file opened",
            f"{LEFT}predictions_are_no_copy_of_what_is_no_file_of_rows[{what}]",
        )
        for what in ("a link", "a pipe")
    ),
    Attack(
        "scores of own code that are a link",
        "secret",
        "no link is followed, only a file opened",
        f"{LEFT}scores_of_own_code_are_read_from_an_archive_of_columns_alone[a link]",
    ),
    Attack(
        "a version leaves folders too deep to be removed",
        "night",
        "they are left, and named",
        f"{LEFT}folders_in_folders_stop_nobody_who_removes_them",
    ),
    Attack(
        "a version empties the user's files before Linux 6.2",
        "verdict",
        "a filter of system calls",
        "tests/security/test_escapes.py::test_a_file_keeps_its_length_where_landlock_has_no_say_in_it",
    ),
    # By a small file that is delivered; one test reads them all.
    *(
        Attack(
            f"a small file takes all memory: {bomb.__name__.replace('_', ' ')}",
            "night",
            "a process with a limit reads it",
            "tests/security/test_parser.py::"
            "test_a_small_file_takes_no_more_memory_than_its_limit_and_the_sentence_names_both",
        )
        for bomb in BOMBS
    ),
    Attack(
        "a file's reader is asked for a secret",
        "secret",
        "it has none, and opens no path",
        "tests/security/test_parser.py::"
        "test_the_process_that_reads_has_no_secret_and_opens_only_what_it_is_given",
    ),
    # By what is installed, and by the environment.
    Attack(
        "a build requirement without its hash",
        "code",
        "nothing is built in isolation",
        "tests/test_image.py::test_what_an_image_builds_is_built_by_what_it_has_and_fetches_nothing_for_it",
    ),
    Attack(
        "a file without its hash in make setup",
        "code",
        "hashes.txt, and nothing is built in isolation",
        "tests/test_image.py::test_make_setup_installs_what_has_a_known_hash_and_else_torch_alone",
    ),
    *(
        Attack(
            f"{variable} leads loopback elsewhere",
            "night",
            "no proxy is asked for this machine",
            f"{ENVIRONMENT}a_command_reaches_what_is_on_this_machine_though_a_proxy_is_set[{variable}]",
        )
        for variable in ("HTTP_PROXY", "http_proxy", "ALL_PROXY")
    ),
    Attack(
        "a proxy for what make starts",
        "night",
        "no proxy is asked for this machine",
        f"{ENVIRONMENT}what_make_starts_asks_no_proxy_for_this_machine",
    ),
    Attack(
        "a proxy for services beside a container",
        "night",
        "no proxy is asked for names without a dot",
        f"{ENVIRONMENT}services_of_a_network_of_containers_are_asked_without_it_and_those_of_a_domain_with_it",
    ),
    *(
        Attack(
            f"a page of a stranger asks the pages on {host}",
            "secret",
            "names of Host and Origin",
            "tests/extensions/pages/test_night_pages.py::"
            f"test_a_request_that_names_another_host_is_refused_on_loopback[{host}]",
        )
        for host in ("127.0.0.1", "127.0.0.2", "::1")
    ),
    Attack(
        "scripts of a stranger in the router's page",
        "secret",
        "the page loads nothing",
        "tests/extensions/router/test_router.py::test_the_page_of_what_may_be_asked_loads_nothing",
    ),
    Attack(
        "GIT_DIR leads to another repository",
        "verdict",
        "git's own variables are dropped",
        "tests/test_commands.py::test_a_command_of_a_hook_works_on_the_repository_of_its_home",
    ),
    Attack(
        "GIT_DIR and a proxy in a notebook",
        "verdict",
        "git's own variables are dropped",
        "tests/extensions/notebooks/test_notebooks.py::"
        "test_a_home_is_opened_though_the_environment_leads_git_and_a_proxy_elsewhere",
    ),
    Attack(
        "hooks of git where the ledger moves",
        "code",
        "no hook runs",
        "tests/storage/test_ledger.py::test_no_hook_of_the_user_runs_where_the_ledger_moves",
    ),
    *(
        Attack(
            f"DVC's state is another's: {taken}",
            "night",
            "a folder of this user alone",
            f"tests/storage/test_snapshots.py::test_dvc_keeps_its_state_where_no_other_user_writes[{taken}]",
        )
        for taken in ("a folder of all", "a file", "a link")
    ),
    Attack(
        "a job that is ended after a second asks for more time",
        "verdict",
        "its end is compared with its time",
        "tests/backends/test_contract.py::test_an_end_from_outside_is_told_apart_from_the_time_limit",
    ),
    Attack(
        "logs of tasks fill the disk",
        "night",
        "deleted after 30 days",
        "tests/test_compose.py::test_logs_of_tasks_are_deleted_after_thirty_days_and_their_folders_with_them",
    ),
    Attack(
        "versions that are killed leave threads in the router",
        "night",
        "each process has one, which ends with it",
        f"{OF_ROUTER}processes_that_were_killed_leave_no_threads_behind",
    ),
    Attack(
        "an endpoint's container is sent headers without end",
        "night",
        "the router's limits",
        "tests/extensions/vertex/test_container.py::"
        "test_a_container_has_the_routers_limits_but_not_for_the_one_address_that_asks",
    ),
    Attack(
        "git here has lost the ledger",
        "verdict",
        "a copy of the branch brings it back",
        "tests/rollout/test_ledger_copy.py::test_what_is_pushed_brings_a_ledger_back_that_git_here_has_lost",
    ),
    Attack(
        "git gc while the ledger is in use",
        "verdict",
        "what the ledger needs is reachable from its branch",
        "tests/storage/test_ledger.py::"
        "test_nothing_of_the_ledger_is_lost_while_git_removes_what_no_branch_has",
    ),
    Attack(
        "a home of another user",
        "night",
        "named with its owner",
        "tests/test_full_disk.py::test_a_repository_of_another_user_is_named_with_its_owner",
    ),
    Attack(
        "a home by a link, its cache on another disk, and git gc in its night",
        "night",
        "it is the same home",
        f"{ODD}a_night_by_a_link_with_its_cache_on_another_disk_goes_on_while_git_collects_garbage",
    ),
    Attack(
        "a home that may not be written to",
        "night",
        "what only reads goes on, the rest is refused",
        f"{ODD}a_home_that_may_not_be_written_to_is_shown_and_served_where_the_log_is_elsewhere",
    ),
    Attack(
        "a copy of a home that may not be written to",
        "night",
        "check names it, and goes on",
        f"{ODD}a_copy_that_may_not_be_written_to_is_examined_to_the_end",
    ),
    *(
        Attack(
            f"a home that root made, then another user: {what}",
            "verdict",
            "sentences, and nothing is changed",
            f"{ODD}a_home_that_root_made_is_shown_to_another_user_and_not_changed[{what}]",
        )
        for what in ("allowed", "git refuses")
    ),
    Attack(
        "a checkout that may not be written to",
        "night",
        "nights run in a home elsewhere",
        f"{ODD}a_checkout_that_may_not_be_written_to_runs_the_nights_of_a_home_elsewhere",
    ),
    Attack(
        "a machine without IPv4 serves",
        "night",
        "::1, and sentences of what does not go there",
        f"{ODD}a_machine_without_ipv4_serves_and_says_what_does_not_go_there",
    ),
    Attack(
        "a night on a machine without IPv4",
        "night",
        "localhost by the machine's own names",
        f"{ODD}a_night_runs_on_a_machine_without_ipv4",
    ),
    Attack(
        "a home by a link",
        "night",
        "it is the same home",
        "tests/storage/test_copied_homes.py::test_make_down_ends_what_was_started_in_the_same_home_by_a_link",
    ),
]
COUNTS: dict[After, str] = {
    "code": "code run that the ledger does not hold",
    "secret": "secrets seen",
    "verdict": "verdicts or records changed",
    "night": "nights or services stopped",
}


def main() -> None:
    """Run the tests of all attacks, and count what those that were not held got."""
    wanted = [one for one in ATTACKS if not (QUICK and one.test.startswith(SLOW))]
    passed, skipped, took = outcomes([one.test for one in wanted])
    for attack in (one for one in wanted if one.test in skipped):
        print(f"not tried here: {attack.name}")
    attacks = [one for one in wanted if one.test not in skipped]
    table(
        [
            {
                "attack": a.name,
                "stopped by": a.stopped_by,
                "held": "yes" if a.test in passed else "NO",
                "memory, MB": f"{took.get(a.test, 0) / 1e6:.0f}",
                "at most": f"{a.bound_mb:.0f}",
            }
            for a in attacks
        ]
    )
    figures: dict[str, float] = {"attacks": len(attacks), "held": sum(a.test in passed for a in attacks)}
    for after, count in COUNTS.items():
        figures[count] = sum(a.after == after and a.test not in passed for a in attacks)
    for who, rows in (
        ("router", [a for a in attacks if a.is_of_router]),
        ("stages", [a for a in attacks if not a.is_of_router]),
    ):
        figures[f"most memory of {who}, MB"] = max((took.get(a.test, 0) for a in rows), default=0) / 1e6
    figures["rows over their memory"] = sum(took.get(a.test, 0) > a.bound_mb * 1e6 for a in attacks)
    least = 40 if QUICK else 130  # the ninety known ways, and forty
    targets: dict[str, Target] = {"attacks": (">=", least), "held": ("==", len(attacks))}
    targets["rows over their memory"] = ("==", 0)
    finish("attacks", figures, targets | dict.fromkeys(COUNTS.values(), ("==", 0)))


def outcomes(tests: list[str]) -> tuple[set[str], set[str], dict[str, int]]:
    """The tests of which every case ran and passed, those that this machine skips, and bytes at the peak."""
    passed: dict[str, bool] = {}
    skipped, took = set(), dict[str, int]()
    for case in tested("-p", "benchmarks.peak_memory", *dict.fromkeys(tests)):
        whole = f"{case.get('classname', '').replace('.', '/')}.py::{case.get('name')}"
        peak = case.find(f"properties/property[@name='{PROPERTY}']")
        has_run = {each.tag for each in case} <= {"properties", "system-out", "system-err"}
        for node in {whole, whole.partition("[")[0]}:
            passed[node] = passed.get(node, True) and has_run
            took[node] = max(took.get(node, 0), int(peak.get("value", "0")) if peak is not None else 0)
            skipped |= {node} if case.find("skipped") is not None else set()
    known = {test: took[test] for test in tests if test in took}
    return {test for test in tests if passed.get(test)}, skipped & set(tests), known


if __name__ == "__main__":
    main()
