//! Levels: how a mesh learns something new while some members still run the old version.
//!
//! A command of a new kind would be nonsense to an old binary. So each kind belongs to a **level**,
//! the state carries the level that holds, and `RaiseLevel` moves it up by one once every member
//! has reported that its binary supports the next.
//!
//! What an old binary does with a kind that it does not know must not be a guess, nor may a liar
//! stop it by sending nonsense. So the level in the state also says how many kinds exist at it:
//!
//! ```text
//! kind ≥ kinds of the level             refused, by old and new alike
//! kind < kinds, this binary knows it    applied
//! kind < kinds, this binary does not    the node stops, and names the version to install
//! ```
//!
//! The last line is met by a binary that was replaced by an older one; others stop earlier, at the
//! `RaiseLevel` itself or at a snapshot of the higher level.

use std::fmt;
use std::str::FromStr;

use mesh_consensus::machine::Halt;
use serde::{Deserialize, Serialize};

use super::command::{RaiseLevel, kinds_at};
use super::refusal::Refusal;
use super::{Facts, Stop};

/// The highest level that this binary knows.
pub const LEVEL: u16 = 7;

/// The first release that supports each level, from level 1 on.
const FIRST_RELEASES: [Version; LEVEL as usize] = [Version::new(0, 1, 0); LEVEL as usize];

/// The level that holds in a mesh.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Level {
    /// Which one. Zero only in a state that waits to be restored.
    pub number: u16,
    /// How many kinds of command exist at it. They are numbered from 0 in order of introduction.
    pub kinds: u16,
    /// The first release that supports it: what to install.
    pub version: Version,
}

impl Level {
    /// What this binary knows of level `number`.
    pub fn known(number: u16) -> Option<Self> {
        let version = *FIRST_RELEASES.get(usize::from(number).checked_sub(1)?)?;
        Some(Self { number, kinds: kinds_at(number), version })
    }

    /// Stops a binary that knows levels up to `supports` only.
    pub(super) fn check_support(&self, supports: u16) -> Result<(), Halt> {
        if self.number <= supports { Ok(()) } else { Err(self.too_new_for(supports)) }
    }

    pub(super) fn too_new_for(&self, supports: u16) -> Halt {
        Halt::TooOld { level: self.number, supports, install: self.version.to_string() }
    }
}

/// A release: `MAJOR.MINOR.PATCH`. Three numbers cannot be malformed, nor longer than 32 bytes.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
pub struct Version {
    /// Changes when people must do something.
    pub major: u32,
    /// Changes when something is new.
    pub minor: u32,
    /// Changes when something is mended.
    pub patch: u32,
}

/// The text is not a version.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{found:?} is not a version: expected MAJOR.MINOR.PATCH")]
pub struct ParseVersionError {
    found: String,
}

impl Version {
    /// The version of these numbers.
    pub const fn new(major: u32, minor: u32, patch: u32) -> Self {
        Self { major, minor, patch }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

impl FromStr for Version {
    type Err = ParseVersionError;

    fn from_str(text: &str) -> Result<Self, ParseVersionError> {
        let error = || ParseVersionError { found: text.chars().take(33).collect() };
        let mut parts = text.splitn(3, '.').map(str::parse::<u32>);
        let mut next = || parts.next().and_then(Result::ok).ok_or_else(error);
        let version = Self { major: next()?, minor: next()?, patch: next()? };
        // `u32` also reads "+1" and "01"; a version has one spelling.
        if version.to_string() == text { Ok(version) } else { Err(error()) }
    }
}

impl Facts {
    /// Raises the level by one, as every member supports it.
    ///
    /// The order matters: what every binary can decide comes first, so that a refusal is the same
    /// everywhere. Only then does a binary stop that does not know the level (all others know it,
    /// by their own word), and only those that know it compare it with what they know.
    pub(super) fn raise_level(&mut self, act: RaiseLevel, supports: u16) -> Result<(), Stop> {
        if Some(act.level) != self.level.number.checked_add(1) {
            return Err(Refusal::NotNextLevel.into());
        }
        let all = self.members.values().filter(|m| !m.leaving).all(|m| m.report.level >= act.level);
        if !all {
            return Err(Refusal::NotAllSupport.into());
        }
        let next = Level { number: act.level, kinds: act.kinds, version: act.version };
        next.check_support(supports)?;
        if Level::known(act.level) != Some(next) {
            return Err(Refusal::WrongLevel.into());
        }
        self.level = next;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use mesh_consensus::command::Command;
    use mesh_consensus::id::Hash;
    use mesh_consensus::machine::{Outcome, StateMachine};

    use super::super::State;
    use super::super::command::{Act, KINDS, NameDrop, Report};
    use super::super::testing::{Scene, name, node, party_id};
    use super::*;

    fn two() -> RaiseLevel {
        RaiseLevel::to(2).unwrap()
    }

    fn drop_name() -> Act {
        NameDrop { party: party_id(1), name: name("xray"), expect: Hash([1; 32]) }.into()
    }

    /// What a binary of level `supports` would hold now.
    fn as_seen_by(scene: &Scene, supports: u16) -> State {
        let mut state = State::blank(supports);
        state.restore(&scene.state.snapshot()).unwrap();
        state
    }

    #[test]
    fn a_version_has_one_spelling() {
        assert_eq!("1.20.3".parse(), Ok(Version::new(1, 20, 3)));
        assert_eq!(Version::new(1, 20, 3).to_string(), "1.20.3");
        let long = "9".repeat(40);
        for bad in ["", "1", "1.2", "1.2.3.4", "01.2.3", "+1.2.3", "1.2.3-rc1", "a.b.c", &long] {
            assert!(bad.parse::<Version>().is_err(), "{bad:?}");
        }
        assert_eq!(Version::new(u32::MAX, u32::MAX, u32::MAX).to_string().len(), 32);
    }

    #[test]
    fn every_level_has_its_kinds_in_order_of_introduction() {
        assert!(KINDS.is_sorted_by_key(|kind| kind.level));
        let kinds = [1, 2, 3, 4, 5, 6].map(|level| Level::known(level).unwrap().kinds);
        assert_eq!(kinds, [11, 12, 18, 23, 24, 35]);
        assert_eq!(Level::known(LEVEL).map(|level| usize::from(level.kinds)), Some(KINDS.len()));
        assert_eq!(Level::known(0), None);
        assert_eq!(Level::known(LEVEL + 1), None);
    }

    #[test]
    fn a_kind_of_a_later_level_is_refused_by_old_and_new_binaries_alike() {
        let mut scene = Scene::new();
        let mut old = as_seen_by(&scene, 1);
        let at = scene.at(&node(1));
        for kind in [11, 12, 500, u16::MAX] {
            let command = Command { kind, body: drop_name().command().body };
            let refused = Ok(Outcome::Refused(Refusal::UnknownKind.code()));
            assert_eq!(scene.state.apply(&at, &command), refused);
            assert_eq!(old.apply(&at, &command), refused);
        }
        assert_eq!(old.snapshot(), scene.state.snapshot());
    }

    #[test]
    fn the_level_is_not_raised_until_every_member_has_reported_support() {
        let mut scene = Scene::two_parties();
        assert_eq!(scene.act(&node(1), two()), Err(Refusal::NotAllSupport));
        scene.report(1, |report| report.level = 2);
        assert_eq!(scene.act(&node(1), two()), Err(Refusal::NotAllSupport));
        scene.report(2, |report| report.level = 2);
        assert_eq!(scene.act(&node(9), two()), Err(Refusal::NotMember));
        assert_eq!(scene.act(&node(2), two()), Ok(()));
        assert_eq!(scene.state.level(), Level::known(2).unwrap());
    }

    #[test]
    fn an_old_binary_refuses_a_raise_that_not_all_support() {
        let mut scene = Scene::two_parties();
        let mut old = as_seen_by(&scene, 1);
        let at = scene.at(&node(1));
        let refused = Ok(Outcome::Refused(Refusal::NotAllSupport.code()));
        assert_eq!(old.apply(&at, &Act::from(two()).command()), refused);
    }

    #[test]
    fn a_leaving_member_does_not_hold_the_level_down() {
        let mut scene = Scene::two_parties();
        scene.seat_voters(&[1, 2]);
        scene.report(1, |report| report.level = 2);
        scene.leave(2).unwrap();
        assert_eq!(scene.act(&node(1), two()), Ok(()));
    }

    #[test]
    fn a_level_is_raised_by_one_and_only_as_it_is_known() {
        let mut scene = Scene::new();
        scene.report(1, |report| report.level = u16::MAX);
        let raise = |level, kinds, version| RaiseLevel { level, kinds, version };
        let version = two().version;
        for level in [0, 1, 3, u16::MAX] {
            let act = raise(level, 12, version);
            assert_eq!(scene.act(&node(1), act), Err(Refusal::NotNextLevel), "{level}");
        }
        assert_eq!(scene.act(&node(1), raise(2, 13, version)), Err(Refusal::WrongLevel));
        let elsewhere = Version::new(6, 6, 6);
        assert_eq!(scene.act(&node(1), raise(2, 12, elsewhere)), Err(Refusal::WrongLevel));
        assert_eq!(scene.act(&node(1), two()), Ok(()));
    }

    #[test]
    fn an_old_binary_stops_at_the_raise_and_names_the_version_to_install() {
        let mut scene = Scene::new();
        scene.report(1, |report| report.level = 2);
        let mut old = as_seen_by(&scene, 1);
        let before = old.snapshot();
        let at = scene.at(&node(1));
        let command = Act::from(two()).command();
        let halt = Err(Halt::TooOld { level: 2, supports: 1, install: "0.1.0".into() });
        assert_eq!(old.apply(&at, &command), halt);
        assert_eq!(old.snapshot(), before);
        assert_eq!(scene.state.apply(&at, &command), Ok(Outcome::Done));
    }

    #[test]
    fn an_old_binary_stops_at_a_snapshot_of_a_higher_level() {
        let mut scene = Scene::new();
        scene.raise_to(2);
        let mut old = State::blank(1);
        let halt = Err(Halt::TooOld { level: 2, supports: 1, install: "0.1.0".into() });
        assert_eq!(old.restore(&scene.state.snapshot()), halt);
        assert_eq!(old, State::blank(1));
        // Also when what follows the level is in a form that it cannot read.
        let mut later = postcard::to_stdvec(&Level { number: 9, ..Level::default() }).unwrap();
        later.extend_from_slice(b"something of the future");
        let halt = old.restore(&later).unwrap_err();
        assert!(matches!(halt, Halt::TooOld { level: 9, supports: 1, .. }), "{halt}");
    }

    #[test]
    fn a_binary_that_lacks_a_kind_of_the_level_stops() {
        let mut scene = Scene::new();
        scene.raise_to(2);
        // Nothing lets this come about; the rule is there for whatever we did not think of.
        let mut old = scene.state.clone();
        old.supports = 1;
        let at = scene.at(&node(1));
        let halt = old.apply(&at, &drop_name().command()).unwrap_err();
        assert!(matches!(halt, Halt::TooOld { level: 2, supports: 1, .. }), "{halt}");
        let known: Act = Report::assumed(2).into();
        assert_eq!(old.apply(&at, &known.command()), Ok(Outcome::Done));
    }

    #[test]
    fn a_newcomer_holds_the_next_level_down_until_it_reports() {
        let mut scene = Scene::new();
        scene.report(1, |report| report.level = 2);
        scene.join(1, 2).unwrap();
        assert_eq!(scene.act(&node(1), two()), Err(Refusal::NotAllSupport));
        scene.report(2, |report| report.level = 2);
        assert_eq!(scene.act(&node(1), two()), Ok(()));
    }
}
