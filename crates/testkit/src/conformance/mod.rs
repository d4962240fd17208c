//! The suite that every tier and every decorator passes: one promise a function, each given a way
//! to make a fresh tier.
//!
//! ```
//! use kvtier_testkit::conformance::Fixture;
//! use kvtier_testkit::{ModelConfig, ModelTier};
//!
//! fn make() -> Fixture {
//!     Fixture::new(ModelTier::open(ModelConfig::default()).expect("a thread"))
//! }
//!
//! kvtier_testkit::conformance!(make);
//! # fn main() {}
//! ```

pub mod answers;
pub(crate) mod decorator;
pub mod eviction;
mod fixture;
pub mod holds;
pub mod observe;
pub mod save_and_load;
pub mod threads;
pub mod time;

pub use fixture::{Fixture, Reach};

/// Runs a test where it is called.
pub fn right_here(_name: &str, body: &dyn Fn()) {
    body();
}

/// Makes a test of every promise. Its argument is the name of a `fn() -> Fixture` that makes a
/// fresh, empty tier. A second one, a `fn(&str, &dyn Fn())`, is given the path of each test and its
/// body, and runs it elsewhere: in a child process, say.
#[macro_export]
macro_rules! conformance {
    (@each $make:path, $around:path; $($module:ident :: $promise:ident,)*) => {
        $(
            #[test]
            fn $promise() {
                let name = concat!(module_path!(), "::", stringify!($promise));
                $around(name, &|| $crate::conformance::$module::$promise(&$make));
            }
        )*
    };
    ($make:path) => {
        $crate::conformance! { $make, $crate::conformance::right_here }
    };
    ($make:path, $around:path) => {
        $crate::promises! { conformance @each $make, $around; }
    };
}

/// All promises with their names, for programs that are no tests.
pub const PROMISES: &[(&str, fn(&dyn Fn() -> Fixture))] = crate::promises! { promise_list };

#[doc(hidden)]
#[macro_export]
macro_rules! promise_list {
    ($($module:ident :: $promise:ident,)*) => {
        &[$((stringify!($promise), $crate::conformance::$module::$promise),)*]
    };
}

/// Calls a macro of this crate with what is given and the list of all promises.
#[doc(hidden)]
#[macro_export]
macro_rules! promises {
    ($then:ident $($given:tt)*) => {
        $crate::$then! { $($given)*
            save_and_load::what_was_saved_is_loaded,
            save_and_load::sizes_around_a_page_come_back,
            save_and_load::a_chunk_scatters_over_leases_and_gathers_from_views,
            save_and_load::pieces_of_any_length_join,
            save_and_load::longer_leases_are_filled_as_far_as_the_chunk_goes,
            save_and_load::a_chunk_longer_than_the_leases_is_a_miss_and_writes_nothing_past_them,
            save_and_load::leftovers_in_a_lease_do_not_count_after_a_miss,
            save_and_load::unaligned_memory_moves_or_is_invalid,
            answers::absent_is_a_miss_with_the_leases_back,
            answers::saved_again_is_present,
            answers::keys_do_not_mix,
            answers::the_same_id_in_another_namespace_is_another_key,
            answers::a_chunk_of_the_wrong_length_is_invalid,
            answers::a_partial_chunk_is_taken_where_it_may_be,
            answers::an_empty_chunk_is_invalid,
            answers::a_batch_is_answered_in_order,
            answers::empty_batches_are_answered,
            answers::lookup_answers_each_key,
            answers::a_lookup_in_memory_agrees,
            answers::lookup_of_a_prefix_ends_at_the_first_miss,
            answers::removed_is_gone,
            holds::a_hold_keeps_from_remove_until_released,
            holds::a_hold_expires,
            holds::a_hold_whose_answer_is_never_taken_ends,
            holds::two_holds_are_both_needed_to_end,
            holds::keys_of_a_hold_are_released_one_by_one,
            holds::nothing_hit_is_nothing_held,
            holds::an_unknown_hold_is_released_without_harm,
            eviction::a_hold_keeps_from_eviction,
            eviction::capacity_is_kept_and_the_newest_stays,
            eviction::a_chunk_larger_than_the_tier_is_shed,
            time::a_deadline_in_the_past_is_a_timeout_at_once,
            time::dropped_tickets_lose_no_memory,
            time::cancel_is_answered,
            time::closed_is_closed,
            time::ready_resolves,
            time::too_much_is_throttled_and_never_blocks,
            observe::usage_counts_what_is_there,
            observe::pages_list_every_key_once,
            observe::stored_and_removed_are_reported,
            observe::status_says_whether_it_works,
            threads::threads_that_save_and_load_the_same_keys_see_whole_chunks,
            threads::threads_that_save_load_and_remove_never_see_a_wrong_byte,
        }
    };
}
