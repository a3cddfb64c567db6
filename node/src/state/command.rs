//! What members can ask of the state: the list of all kinds of command.
//!
//! A kind has a number for ever and belongs to the level at which it came; a new one goes to the
//! end of the list below. Its struct holds only what has a bound: keys, numbers, hashes, a
//! [`Name`]. So no command is larger than a few hundred bytes, whoever sends it; but for those that
//! carry the body of a version, with [`MAX_ACT_BYTES`], a job's spec ([`crate::job::spec::MAX_SPEC_BYTES`]),
//! a plan ([`super::jobs::MAX_PLACES`]) or a round or checkpoint of a training, which is at most some 30 KiB.
//!
//! ```text
//! command body = the kind's struct ‖ Option<PartySignature>        (postcard)
//! ```
//!
//! There is one encoding: a body that would be written otherwise than it was read is refused.

use ed25519_dalek::SigningKey;
use mesh_consensus::command::{Command, exact};
use mesh_consensus::id::{Hash, NodeId, PartyId, TicketId};
use mesh_consensus::time::Time;
use serde::{Deserialize, Serialize};

pub use super::course::{CourseCharge, CourseClaim, CourseEnd, CourseRound};
pub use super::data::acts::{Hold, TagSet, VersionBody, VersionDrop, VersionNew};
pub use super::jobs::acts::{Assign, JobForget, JobStop, JobSubmit, TaskDone, TaskKeep, TaskNews};
use super::label::LabelValue;
use super::level::{Level, Version};
use super::name::Name;
use super::party::{PartySignature, SignatureBytes, Slot, sign_party_act};
use super::request::{JointAct, RequestId};
pub use super::server::{ServerKeep, ServerLay, ServerReady, ServerShard};

/// No command that takes effect has a larger body: the largest is a sealed record of the largest size, with
/// a listing, holders and a signature.
pub const MAX_ACT_BYTES: usize = 6 << 10;

/// A line in the list of kinds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kind {
    /// Its number, which is its place in [`KINDS`].
    pub number: u16,
    /// Its name.
    pub name: &'static str,
    /// The level at which it came.
    pub level: u16,
}

macro_rules! kinds {
    ($($(#[$doc:meta])* $number:literal $name:ident level $level:literal;)*) => {
        /// Something that a member asks of the state.
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub enum Act {
            $($(#[$doc])* $name($name),)*
        }

        /// All kinds, in order of introduction.
        pub const KINDS: &[Kind] =
            &[$(Kind { number: $number, name: stringify!($name), level: $level },)*];

        impl Act {
            /// The number of its kind.
            pub fn kind(&self) -> u16 {
                match self {
                    $(Act::$name(_) => $number,)*
                }
            }

            /// The kind's struct in bytes: what a party signs.
            pub(super) fn body(&self) -> Vec<u8> {
                match self {
                    $(Act::$name(act) => postcard::to_stdvec(act),)*
                }
                .expect("an act holds nothing that postcard cannot encode")
            }

            fn take(kind: u16, bytes: &[u8]) -> Option<(Act, &[u8])> {
                match kind {
                    $($number => {
                        let (act, rest) = postcard::take_from_bytes(bytes).ok()?;
                        Some((Act::$name(act), rest))
                    })*
                    _ => None,
                }
            }
        }

        $(impl From<$name> for Act {
            fn from(act: $name) -> Self {
                Act::$name(act)
            }
        })*
    };
}

kinds! {
    /// A party makes a ticket.
    0 TicketNew level 1;
    /// A party takes a ticket back.
    1 TicketRevoke level 1;
    /// A member lets in a newcomer that has a ticket.
    2 Admit level 1;
    /// A member has lost its data directory and takes a new seat.
    3 Rejoin level 1;
    /// A node goes, by its own will or its party's.
    4 Leave level 1;
    /// A party asks the other parties for their consent.
    5 RequestOpen level 1;
    /// A party answers a request.
    6 RequestSign level 1;
    /// A node tells about itself.
    7 Report level 1;
    /// A node says for its party whether another one is down.
    8 Suspect level 1;
    /// The mesh begins to use what every member supports.
    9 RaiseLevel level 1;
    /// A node sets a name of its party.
    10 NameSet level 1;
    /// A node drops a name of its party.
    11 NameDrop level 2;
    /// A voter sets the length of raft's tick.
    12 Pace level 3;
    /// A node labels another of its party, or itself.
    13 Label level 3;
    /// A node says whether another of its party, or itself, takes new work.
    14 Drain level 3;
    /// A party makes an invite: a ticket for a new party.
    15 Invite level 3;
    /// A member speaks for somebody who has an invite and wants to found a party.
    16 Found level 3;
    /// A node signs a change of voters that it voted before.
    17 HandOver level 3;
    /// A node makes a version of its party's data, or another sealed record.
    18 VersionNew level 4;
    /// A node drops a version of its party's data, or another sealed record.
    19 VersionDrop level 4;
    /// A node shares, seals or lists a version of its party's data.
    20 VersionBody level 4;
    /// A node sets or drops a tag of its party's data.
    21 TagSet level 4;
    /// A node says whether it holds a copy of a version.
    22 Hold level 4;
    /// A party takes back a request that it opened.
    23 RequestWithdraw level 5;
    /// A node submits a job of its party.
    24 JobSubmit level 6;
    /// A node asks for the end of a job of its party.
    25 JobStop level 6;
    /// A node drops a job of its party that is over.
    26 JobForget level 6;
    /// A voter says what ends and what is placed.
    27 Assign level 6;
    /// A node tells how far an attempt is.
    28 TaskNews level 6;
    /// A node tells that a task is done, and what it leaves behind.
    29 TaskDone level 6;
    /// A node keeps what a task has come to so far.
    30 TaskKeep level 6;
    /// A node takes, or keeps, the right to coordinate a training.
    31 CourseClaim level 6;
    /// Whoever coordinates a training commits a model, or opens a round, or both.
    32 CourseRound level 6;
    /// Whoever coordinates a training charges a round to the budgets of participants.
    33 CourseCharge level 6;
    /// Whoever coordinates a training says how it ended.
    34 CourseEnd level 6;
    /// Whoever coordinates a parameter server lays out its shards.
    35 ServerLay level 7;
    /// Whoever coordinates a parameter server gives a shard another primary or backup.
    36 ServerShard level 7;
    /// Whoever coordinates a parameter server says that a shard and its backup have their values.
    37 ServerReady level 7;
    /// Whoever coordinates a parameter server keeps a checkpoint.
    38 ServerKeep level 7;
}

/// A party makes a ticket. Needs the signature of that party.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TicketNew {
    /// The public key of its one-off seed.
    pub ticket: TicketId,
    /// The party that newcomers will belong to.
    pub party: PartyId,
    /// The first moment at which it no longer counts.
    pub expires: Time,
    /// How many nodes it lets in: 1 to [`super::ticket::MAX_USES`].
    pub uses: u32,
    /// Whether those nodes go without the party's signing key.
    pub worker: bool,
}

/// A party takes a ticket back. Needs the signature of the ticket's party.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TicketRevoke {
    /// Which one.
    pub ticket: TicketId,
}

/// A member lets in a newcomer. The seat will be the index of the entry, so an entry admits one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Admit {
    /// The ticket that it showed; it tells the party.
    pub ticket: TicketId,
    /// The newcomer.
    pub node: NodeId,
    /// What it will be called.
    pub name: Name,
    /// By the ticket's key: see [`super::ticket::sign_join`].
    pub proof: SignatureBytes,
    /// By the newcomer's own key: see [`super::ticket::sign_consent`].
    pub consent: SignatureBytes,
}

/// The author has come back with an empty data directory and takes the entry's index as its seat.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rejoin {}

/// A node goes for good. By the node itself, or with the signature of its party.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Leave {
    /// Which one.
    pub node: NodeId,
}

/// A party asks for consent; its signature counts as its yes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestOpen {
    /// What is to be done once a majority of the parties has said yes.
    pub act: JointAct,
    /// The first moment at which it can no longer be answered.
    pub expires: Time,
}

/// A party answers a request. Needs the signature of a party, once for each request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestSign {
    /// Which one.
    pub request: RequestId,
    /// The answer.
    pub yes: bool,
}

/// A party takes back a request. Needs the signature of the party that opened it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestWithdraw {
    /// Which one.
    pub request: RequestId,
}

/// What a node says about itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// The highest level that its binary supports.
    pub level: u16,
    /// Its version.
    pub version: Version,
    /// Whether it is willing to vote.
    pub votes: bool,
    /// How long a sync of its disk takes, but for one in a hundred, in microseconds; `None` until it
    /// has been measured.
    pub fsync_p99_us: Option<u32>,
    /// Whether others can reach it without a relay.
    pub direct: bool,
    /// What it shares its fate with: a rack, a site.
    pub domain: Option<Name>,
}

impl Report {
    /// What is assumed of a member that has not reported yet, in a mesh at `level`.
    pub fn assumed(level: u16) -> Self {
        let version = Version::default();
        Self { level, version, votes: true, fsync_p99_us: None, direct: true, domain: None }
    }
}

/// Says for the author's party whether another node is down.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Suspect {
    /// Which node.
    pub node: NodeId,
    /// Whether it seems down.
    pub down: bool,
}

/// The mesh begins to use what every member supports. See [`super::level`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RaiseLevel {
    /// The next level.
    pub level: u16,
    /// How many kinds of command exist at it.
    pub kinds: u16,
    /// The first release that supports it.
    pub version: Version,
}

impl RaiseLevel {
    /// The raise to `level` as this binary knows it.
    pub fn to(level: u16) -> Option<Self> {
        let Level { number, kinds, version } = Level::known(level)?;
        Some(Self { level: number, kinds, version })
    }
}

/// Sets a name of the author's party, if it stands for what is expected.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NameSet {
    /// The author's party.
    pub party: PartyId,
    /// The name.
    pub name: Name,
    /// What it stands for now; `None` if it is to be new.
    pub expect: Option<Hash>,
    /// What it will stand for.
    pub to: Hash,
}

/// Drops a name of the author's party, if it stands for what is expected.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NameDrop {
    /// The author's party.
    pub party: PartyId,
    /// The name.
    pub name: Name,
    /// What it stands for now.
    pub expect: Hash,
}

/// Sets the length of raft's tick. By a member that votes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pace {
    /// In milliseconds: one of [`super::extras::TICKS_MS`].
    pub tick_ms: u32,
}

/// Signs a change of voters, as one who voted before it. See [`mesh_consensus::handover`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HandOver {
    /// The entry that changed them.
    pub index: u64,
    /// By the author's own key.
    pub signature: SignatureBytes,
}

/// Sets or drops a label of a node of the author's party.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Label {
    /// Which node.
    pub node: NodeId,
    /// The word.
    pub key: Name,
    /// Its value; `None` drops it.
    pub value: Option<LabelValue>,
}

/// Says whether a node of the author's party takes new work. Its vote stays as it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Drain {
    /// Which node.
    pub node: NodeId,
    /// Whether it is drained from now on.
    pub on: bool,
}

/// A party makes an invite. Needs the signature of that party. It lets in no node: see
/// [`super::invite`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Invite {
    /// The public key of its one-off seed.
    pub ticket: TicketId,
    /// The party that invites.
    pub party: PartyId,
    /// The first moment at which it no longer counts.
    pub expires: Time,
    /// How many parties may ask to be taken in: 1 to [`super::ticket::MAX_USES`].
    pub uses: u32,
}

/// Asks, in the name of the party that made the invite, to take in a further one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Found {
    /// The invite that the newcomer showed.
    pub invite: TicketId,
    /// What the party will be called.
    pub name: Name,
    /// Its signing key, which is its id.
    pub signing: PartyId,
    /// Its sealing key.
    pub sealing: [u8; 32],
    /// The ticket with which its first node will join, once the party is there.
    pub ticket: TicketId,
    /// By the invite's key: see [`super::invite::sign_found`].
    pub proof: SignatureBytes,
    /// By the party's own signing key: see [`super::invite::sign_found_consent`].
    pub consent: SignatureBytes,
}

impl Act {
    /// The command that asks for this, without a party's signature.
    pub fn command(&self) -> Command {
        self.with(None)
    }

    /// The command that asks for this, signed for the place where it will stand.
    pub fn signed(&self, key: &SigningKey, slot: &Slot) -> Command {
        self.with(Some(&sign_party_act(key, slot, self)))
    }

    /// The command that asks for this, with a signature made elsewhere (the key may be offline).
    pub fn with(&self, signature: Option<&PartySignature>) -> Command {
        let mut body = self.body();
        let signature = postcard::to_stdvec(&signature);
        body.extend(signature.expect("a signature holds nothing that postcard cannot encode"));
        Command { kind: self.kind(), body }
    }

    /// What a command asks for, and the party's signature (not checked). `None` if the kind is
    /// unknown or the body is not exactly its one encoding.
    pub fn decode(command: &Command) -> Option<(Self, Option<PartySignature>)> {
        let (act, rest) = Self::take(command.kind, &command.body)?;
        let signature: Option<PartySignature> = exact(rest)?;
        (act.with(signature.as_ref()) == *command).then_some((act, signature))
    }
}

/// How many kinds exist at `level`, as far as this binary knows.
pub fn kinds_at(level: u16) -> u16 {
    let count = KINDS.iter().filter(|kind| kind.level <= level).count();
    u16::try_from(count).expect("the list of kinds is short")
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Scene, any_act, name, node, party};
    use super::*;

    #[test]
    fn a_kinds_number_is_its_place_in_the_list() {
        for (place, kind) in KINDS.iter().enumerate() {
            assert_eq!(usize::from(kind.number), place, "{}", kind.name);
        }
    }

    #[test]
    fn every_kind_reads_back_what_it_wrote_and_is_small() {
        let mut random = fastrand::Rng::with_seed(1);
        let slot = Slot::of(&Scene::new().at(&node(1)));
        let mut seen = std::collections::BTreeSet::new();
        for _ in 0..2000 {
            let act = any_act(&mut random, Time(0));
            seen.insert(act.kind());
            assert_eq!(Act::decode(&act.command()), Some((act.clone(), None)));
            let signature = sign_party_act(&party(1), &slot, &act);
            let command = act.with(Some(&signature));
            let bound = match act.kind() {
                18 | 20 | 29 | 30 | 32 | 38 => MAX_ACT_BYTES,
                _ => 512,
            };
            assert!(command.body.len() <= bound, "{}", command.body.len());
            assert_eq!(Act::decode(&command), Some((act, Some(signature))));
        }
        assert_eq!(seen.len(), KINDS.len());
    }

    #[test]
    fn a_body_that_is_longer_or_shorter_is_not_decoded() {
        let mut random = fastrand::Rng::with_seed(2);
        for _ in 0..500 {
            let Command { kind, body } = any_act(&mut random, Time(0)).command();
            let longer = [body.as_slice(), &[0]].concat();
            assert_eq!(Act::decode(&Command { kind, body: longer }), None);
            let shorter = body[..body.len() - 1].to_vec();
            assert_eq!(Act::decode(&Command { kind, body: shorter }), None);
        }
    }

    #[test]
    fn a_number_written_the_long_way_is_not_decoded() {
        let report = Report::assumed(1);
        let Command { kind, body } = Act::from(report).command();
        assert_eq!(body[0], 1);
        let padded = [&[0x81, 0x00], &body[1..]].concat();
        assert_eq!(Act::decode(&Command { kind, body: padded }), None);
    }

    #[test]
    fn a_bad_name_inside_a_body_is_not_decoded() {
        let act = NameDrop { party: PartyId([1; 32]), name: name("xray"), expect: Hash([1; 32]) };
        let Command { kind, mut body } = Act::from(act).command();
        body[33] = b'X';
        assert_eq!(Act::decode(&Command { kind, body }), None);
    }
}
