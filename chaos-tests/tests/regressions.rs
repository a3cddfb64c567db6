//! Seeds that once failed. The world has changed since, so most of them tell another story today;
//! they cost little, and the reasons are worth reading.

use mesh_chaos_tests::faults::Story;
use mesh_chaos_tests::world::{Options, run};

const ONCE_FAILED: &[(u64, Option<Story>, &str)] = &[
    (
        197,
        None,
        "a leaver went as soon as it knew; the one voter that was left lost power, had forgotten that \
         the change was committed, and waited for the leaver's vote for ever",
    ),
    (468, None, "the same; see Bug::ForgetChange"),
    (656, None, "the same"),
    (238, None, "the autopilot kept proposing a change that the state's rule of seats made void"),
    (491, None, "the same, with an orphaned seat"),
    (984, None, "a chain of admissions was refused for a removed signer behind a known member"),
    (1009, None, "a node of an older version was offered a snapshot of a newer level"),
    (102_777, None, "rot took the last write and nothing else; the leader's heartbeat showed it"),
    (51, Some(Story::Clocks), "two ticks in one turn are two ticks"),
    (2317, Some(Story::Membership), "the only member besides one that leaves had never come up"),
];

#[test]
fn seeds_that_once_failed_hold() {
    for (seed, story, reason) in ONCE_FAILED {
        let options = Options { story: *story, ..Options::default() };
        if let Err(violation) = run(*seed, options) {
            panic!("{violation}\n  once:    {reason}");
        }
    }
}
