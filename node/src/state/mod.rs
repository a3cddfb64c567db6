//! What all members agree on: parties, members, tickets, invites, requests, names, labels, data, jobs,
//! raft's tick and the level.
//!
//! [`State`] is what the log of commands makes of itself. It owns every rule of *who may do what*
//! and leaves to others how commands reach the log, who votes best, and what to do about it all.
//! It is pure: mesh time comes with each command, nothing is random, and every collection has one
//! order. So the same entries give the same bytes on every node.
//!
//! ```text
//! command ─► is its kind known at this level?   level.rs, command.rs
//!         ─► is its author a member?            member.rs
//!         ─► did the party sign it, here?       party.rs
//!         ─► the rules of its kind              ticket.rs invite.rs member.rs label.rs request.rs
//!                                               decided.rs name.rs level.rs extras.rs data.rs
//!                                               jobs.rs course.rs
//!         ─► done, or refused with a number     refusal.rs
//! ```
//!
//! A refused command changes nothing at all. A configuration of raft is judged by `seats.rs`.
//!
//! A snapshot is the level, then the rest, in postcard; what came with level 3 follows, then what came
//! with level 4, and so on. The level comes first so that a binary that cannot
//! read what follows can still say which version can. Something new in the state at a new level must
//! leave the encoding at the older levels as it is: while the level is not raised, old and new binaries
//! sign the same digests.

pub mod command;
pub mod course;
pub mod data;
pub mod decided;
pub mod extras;
pub mod founding;
mod handover;
pub mod invite;
pub mod jobs;
pub mod label;
pub mod level;
pub mod member;
pub mod name;
pub mod party;
pub mod refusal;
pub mod request;
pub mod seats;
pub mod server;
pub mod share;
pub mod ticket;

#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use mesh_consensus::command::Command;
use mesh_consensus::handover::Handover;
use mesh_consensus::id::{Epoch, Hash, NodeId, PartyId, RaftId, TicketId};
use mesh_consensus::log::Config;
use mesh_consensus::machine::{At, Halt, Outcome, StateMachine};
use mesh_consensus::time::Time;
use serde::{Deserialize, Serialize};

use command::{Act, Report, kinds_at};
use data::Data;
use decided::Decided;
use extras::Extras;
use founding::{Founding, FoundingError};
use invite::Invitation;
use jobs::Jobs;
use label::LabelValue;
use level::Level;
use member::Member;
use name::Name;
use party::{Party, check_key};
use refusal::Refusal;
use request::{Request, RequestId};
use share::{Share, Shares};
use ticket::Ticket;

/// The founder's seat: the first state is a snapshot at index 1.
pub const FOUNDERS_SEAT: RaftId = RaftId(1);

/// The replicated state. See the module.
#[derive(Debug, Clone)]
pub struct State {
    /// The highest level that this binary knows; [`level::LEVEL`] but in tests. Not agreed on.
    supports: u16,
    /// See [`State::revision`]. Not agreed on either, and no part of what makes two states equal.
    revision: u64,
    /// See [`State::data_revision`]. The same goes for it.
    data_revision: u64,
    /// See [`State::jobs_revision`]. The same goes for it.
    jobs_revision: u64,
    facts: Facts,
}

impl PartialEq for State {
    fn eq(&self, other: &Self) -> bool {
        (self.supports, &self.facts) == (other.supports, &other.facts)
    }
}

impl Eq for State {}

/// One counter for all states of the process. A snapshot is restored into a state that was blank a
/// moment ago, and must be told apart from the one whose place it takes.
static REVISIONS: AtomicU64 = AtomicU64::new(1);

/// When something happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Moment {
    /// The index of the entry.
    pub index: u64,
    /// Mesh time.
    pub time: Time,
}

impl Moment {
    fn of(at: &At) -> Self {
        Self { index: at.index, time: at.time }
    }
}

/// That the mesh lost its majority and went on from one survivor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recovered {
    /// The epoch that began.
    pub epoch: Epoch,
    /// The index at which it began.
    pub index: u64,
}

/// Everything that is agreed on, which is everything in a snapshot.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
struct Facts {
    /// Must stay the first field: see the module.
    level: Level,
    /// `None` only in a state that waits to be restored.
    founding: Option<Founding>,
    /// No two have one name. A party never goes, though it may have no node.
    parties: BTreeMap<PartyId, Party>,
    /// No two have one name or one seat.
    members: BTreeMap<NodeId, Member>,
    /// Who was a member once. Disjoint from `members`, and only ever grows.
    removed: BTreeSet<NodeId>,
    tickets: BTreeMap<TicketId, Ticket>,
    requests: BTreeMap<RequestId, Request>,
    /// A party without names is not listed.
    names: BTreeMap<PartyId, BTreeMap<Name, Hash>>,
    /// The configuration that holds.
    config: Config,
    /// The index of the last entry that gave a seat. An entry gives one at most.
    last_admission: u64,
    recovered: Option<Recovered>,
    /// Encoded by itself, and at the later levels only.
    #[serde(skip)]
    extras: Extras,
    /// Likewise.
    #[serde(skip)]
    data: Data,
    /// Likewise. The oldest comes first.
    #[serde(skip)]
    decided: VecDeque<Decided>,
    /// Likewise.
    #[serde(skip)]
    jobs: Jobs,
    /// Likewise.
    #[serde(skip)]
    shares: Shares,
}

impl State {
    /// The first state of a new mesh, as it stands at index 1.
    pub fn genesis(founding: Founding, supports: u16) -> Result<Self, FoundingError> {
        let number = founding.level;
        let level = Level::known(number)
            .filter(|_| number <= supports)
            .ok_or(FoundingError::Level { level: number, supports })?;
        let mut facts = Facts { level, ..Facts::default() };
        facts.check_new_party(&founding.party, founding.signing).map_err(FoundingError::Party)?;
        check_key(&founding.founder.0).map_err(FoundingError::Node)?;

        let begun = Moment { index: FOUNDERS_SEAT.0, time: founding.time };
        let party =
            Party { name: founding.party.clone(), sealing: founding.sealing, founded: begun };
        let founder = Member {
            seat: Some(FOUNDERS_SEAT),
            name: founding.node.clone(),
            party: founding.signing,
            worker: false,
            admitted: begun,
            leaving: false,
            report: Report::assumed(number),
            down_by: BTreeSet::new(),
        };
        facts.parties.insert(founding.signing, party);
        facts.members.insert(founding.founder, founder);
        facts.config.voters.insert(FOUNDERS_SEAT);
        facts.last_admission = FOUNDERS_SEAT.0;
        facts.founding = Some(founding);
        let revision = next_revision();
        Ok(Self { supports, revision, data_revision: revision, jobs_revision: revision, facts })
    }

    /// An empty state that waits to be restored. Nobody may write to it.
    pub fn blank(supports: u16) -> Self {
        Self { supports, revision: 0, data_revision: 0, jobs_revision: 0, facts: Facts::default() }
    }

    /// The highest level that this binary knows.
    pub fn supports(&self) -> u16 {
        self.supports
    }

    /// The level that holds.
    pub fn level(&self) -> Level {
        self.facts.level
    }

    /// How the mesh began. `None` in a blank state.
    pub fn founding(&self) -> Option<&Founding> {
        self.facts.founding.as_ref()
    }

    /// All parties, also those without a node.
    pub fn parties(&self) -> &BTreeMap<PartyId, Party> {
        &self.facts.parties
    }

    /// What a party is to have of what all share.
    pub fn share(&self, party: PartyId) -> Share {
        self.facts.shares.get(&party).copied().unwrap_or_default()
    }

    /// The parties that have a say: those with a node that is a member and not leaving.
    pub fn present_parties(&self) -> BTreeSet<PartyId> {
        self.facts.present_parties()
    }

    /// All members, those that are leaving too.
    pub fn members(&self) -> &BTreeMap<NodeId, Member> {
        &self.facts.members
    }

    /// Whether `node` is a member and not leaving.
    pub fn is_member(&self, node: NodeId) -> bool {
        self.facts.staying(node).is_some()
    }

    /// The party of a member (also while it is leaving).
    pub fn party_of(&self, node: NodeId) -> Option<PartyId> {
        self.facts.members.get(&node).map(|member| member.party)
    }

    /// Whether `node` is a member that more than half of the parties hold to be down.
    pub fn is_down(&self, node: NodeId) -> bool {
        let parties = self.facts.present_parties().len();
        self.facts.members.get(&node).is_some_and(|member| member.is_down(parties))
    }

    /// Whether `node` is a member that could take a vote now and do well.
    pub fn is_fit_to_vote(&self, node: NodeId) -> bool {
        let parties = self.facts.present_parties().len();
        self.facts.members.get(&node).is_some_and(|member| member.is_fit_to_vote(parties))
    }

    /// Keys that were members once and may not come back.
    pub fn removed(&self) -> &BTreeSet<NodeId> {
        &self.facts.removed
    }

    /// Why the command would be refused if it came next, for those that strangers can cause: what can
    /// be told without asking everybody is not worth a place in the log.
    pub fn foresee(&self, at: &At, act: &Act) -> Result<(), Refusal> {
        match act {
            Act::Admit(act) => self.facts.check_admit(at, act).map(drop),
            Act::Found(act) => self.facts.check_found(at, act).map(drop),
            _ => Ok(()),
        }
    }

    /// All tickets that have not been cleared away; some may have expired.
    pub fn tickets(&self) -> &BTreeMap<TicketId, Ticket> {
        &self.facts.tickets
    }

    /// All invites that have not been cleared away; some may have expired.
    pub fn invites(&self) -> &BTreeMap<TicketId, Invitation> {
        &self.facts.extras.invites
    }

    /// All requests that have not been decided; some may have expired.
    pub fn requests(&self) -> &BTreeMap<RequestId, Request> {
        &self.facts.requests
    }

    /// The latest requests that are over, the oldest first.
    pub fn decided(&self) -> &VecDeque<Decided> {
        &self.facts.decided
    }

    /// What a party's name stands for.
    pub fn name(&self, party: PartyId, name: &Name) -> Option<Hash> {
        self.facts.name(party, name)
    }

    /// All names of a party, in order.
    pub fn names(&self, party: PartyId) -> impl Iterator<Item = (&Name, Hash)> {
        self.facts.names.get(&party).into_iter().flatten().map(|(name, hash)| (name, *hash))
    }

    /// The labels of a member, in order.
    pub fn labels(&self, node: NodeId) -> impl Iterator<Item = (&Name, &LabelValue)> {
        self.facts.extras.labels.get(&node).into_iter().flatten()
    }

    /// Whether a member is to be given no new work. It keeps its vote all the same.
    pub fn is_drained(&self, node: NodeId) -> bool {
        self.facts.extras.drained.contains(&node)
    }

    /// The latest changes of voters, in order, and who has signed them.
    pub fn handovers(&self) -> impl Iterator<Item = &Handover> {
        self.facts.extras.handovers.values()
    }

    /// The length of raft's tick.
    pub fn tick(&self) -> Duration {
        self.facts.extras.tick()
    }

    /// Grows whenever anything but names, data and jobs may have changed, so that whoever watches the state
    /// can pass over the many entries that are only about those. It is this process's own: two nodes with one
    /// state have different revisions, and so has one node after a restart.
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// The configuration that holds.
    pub fn config(&self) -> &Config {
        &self.facts.config
    }

    /// The index of the last entry that gave a seat.
    pub fn last_admission(&self) -> u64 {
        self.facts.last_admission
    }

    /// The last recovery, if there was one.
    pub fn recovered(&self) -> Option<Recovered> {
        self.facts.recovered
    }

    /// Does what a command says, or tells why not. The order is the one drawn in the module.
    fn act(&mut self, at: &At, command: &Command) -> Result<(), Stop> {
        let Self { supports, data_revision, jobs_revision, facts, .. } = self;
        if command.kind >= facts.level.kinds {
            return Err(Refusal::UnknownKind.into());
        }
        if command.kind >= kinds_at(*supports) {
            return Err(facts.level.too_new_for(*supports).into());
        }
        let (act, signature) = Act::decode(command).ok_or(Refusal::Malformed)?;
        // What it asks for came with a later level: a binary of this one could not read it.
        if matches!(&act, Act::RequestOpen(open) if open.act.since() > facts.level.number) {
            return Err(Refusal::Malformed.into());
        }
        // The author was a member when its batch began; an earlier command may have ended that.
        facts.staying(at.author).ok_or(Refusal::NotMember)?;
        // A signature is looked at wherever there is one, so that what carries one means it.
        let by = signature.map(|by| facts.check_signature(at, &act, &by)).transpose()?;
        let signed = by.ok_or(Refusal::Unsigned);
        let topic = Topic::of(&act);
        match act {
            Act::TicketNew(act) => facts.ticket_new(at, act, signed?)?,
            Act::TicketRevoke(act) => facts.ticket_revoke(&act, signed?)?,
            Act::Admit(act) => facts.admit(at, act)?,
            Act::Rejoin(_) => facts.rejoin(at)?,
            Act::Leave(act) => facts.leave(at, &act, by)?,
            Act::RequestOpen(act) => facts.request_open(at, act, signed?)?,
            Act::RequestSign(act) => facts.request_sign(at, &act, signed?)?,
            Act::Report(act) => facts.report(at, act)?,
            Act::Suspect(act) => facts.suspect(at, &act)?,
            Act::RaiseLevel(act) => facts.raise_level(act, *supports)?,
            Act::NameSet(act) => facts.name_set(at, act)?,
            Act::NameDrop(act) => facts.name_drop(at, &act)?,
            Act::Pace(act) => facts.pace(at, &act)?,
            Act::Label(act) => facts.label(at, act)?,
            Act::Drain(act) => facts.drain(at, &act)?,
            Act::Invite(act) => facts.invite(at, act, signed?)?,
            Act::Found(act) => facts.found(at, act)?,
            Act::HandOver(act) => facts.hand_over(at, &act)?,
            Act::VersionNew(act) => facts.version_new(at, act)?,
            Act::VersionDrop(act) => facts.version_drop(at, &act)?,
            Act::VersionBody(act) => facts.version_body(at, act)?,
            Act::TagSet(act) => facts.tag_set(at, act)?,
            Act::Hold(act) => facts.hold(at, &act)?,
            Act::RequestWithdraw(act) => facts.request_withdraw(at, &act, signed?)?,
            Act::JobSubmit(act) => facts.job_submit(at, act)?,
            Act::JobStop(act) => facts.job_stop(at, &act)?,
            Act::JobForget(act) => facts.job_forget(at, &act)?,
            Act::Assign(act) => facts.assign(at, act)?,
            Act::TaskNews(act) => facts.task_news(at, act)?,
            Act::TaskDone(act) => facts.task_done(at, act)?,
            Act::TaskKeep(act) => facts.task_keep(at, act)?,
            Act::CourseClaim(act) => facts.course_claim(at, &act)?,
            Act::CourseRound(act) => facts.course_round(at, act)?,
            Act::CourseCharge(act) => facts.course_charge(at, &act)?,
            Act::CourseEnd(act) => facts.course_end(at, act)?,
            Act::ServerLay(act) => facts.server_lay(at, act)?,
            Act::ServerShard(act) => facts.server_shard(at, &act)?,
            Act::ServerReady(act) => facts.server_ready(at, &act)?,
            Act::ServerKeep(act) => facts.server_keep(at, act)?,
        }
        match topic {
            Topic::Names => {}
            Topic::Data => *data_revision = next_revision(),
            Topic::Jobs => *jobs_revision = next_revision(),
            Topic::Both => {
                *data_revision = next_revision();
                *jobs_revision = *data_revision;
            }
            Topic::Rest => self.touch(),
        }
        Ok(())
    }

    /// Anything may have changed.
    fn touch(&mut self) {
        self.revision = next_revision();
        self.data_revision = self.revision;
        self.jobs_revision = self.revision;
    }
}

/// What an act can change, as far as those who watch the state are concerned.
enum Topic {
    Names,
    Data,
    Jobs,
    /// Jobs that make data, or end and drop what they kept.
    Both,
    /// Anything: members that go take their copies of data with them.
    Rest,
}

impl Topic {
    fn of(act: &Act) -> Self {
        match act {
            Act::NameSet(_) | Act::NameDrop(_) => Topic::Names,
            Act::VersionNew(_)
            | Act::VersionDrop(_)
            | Act::VersionBody(_)
            | Act::TagSet(_)
            | Act::Hold(_) => Topic::Data,
            Act::JobSubmit(_)
            | Act::CourseClaim(_)
            | Act::CourseRound(_)
            | Act::CourseCharge(_)
            | Act::ServerLay(_)
            | Act::ServerShard(_)
            | Act::ServerReady(_)
            | Act::ServerKeep(_) => Topic::Jobs,
            Act::Assign(act) if act.ends.is_empty() => Topic::Jobs,
            Act::TaskNews(act) if !matches!(act.news, jobs::News::Ended(_)) => Topic::Jobs,
            Act::JobStop(_)
            | Act::JobForget(_)
            | Act::Assign(_)
            | Act::TaskNews(_)
            | Act::TaskDone(_)
            | Act::TaskKeep(_)
            | Act::CourseEnd(_) => Topic::Both,
            _ => Topic::Rest,
        }
    }
}

/// Why a command did not take effect. Nothing has changed, either way.
enum Stop {
    /// On every node.
    Refused(Refusal),
    /// On this node, which can go no further.
    Halted(Halt),
}

impl From<Refusal> for Stop {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

impl From<Halt> for Stop {
    fn from(halt: Halt) -> Self {
        Self::Halted(halt)
    }
}

impl Facts {
    /// What does not hold in these facts although it always should.
    fn flaw(&self) -> Option<&'static str> {
        let members = self.members.values();
        let known = |party: &PartyId| self.parties.contains_key(party);
        let present = self.present_parties();
        let rules = [
            (distinct(self.parties.values().map(|p| &p.name)), "two parties have one name"),
            (distinct(members.clone().map(|m| &m.name)), "two members have one name"),
            (distinct(members.clone().filter_map(|m| m.seat)), "two members have one seat"),
            (self.members.keys().all(|n| !self.removed.contains(n)), "a member has been removed"),
            (
                members.clone().all(|m| known(&m.party) && m.down_by.iter().all(known)),
                "a member speaks of an unknown party",
            ),
            (
                members
                    .clone()
                    .all(|m| !m.leaving || m.seat.is_some_and(|s| self.config.contains(s))),
                "a leaving member has no seat",
            ),
            (self.tickets.values().all(|t| known(&t.party)), "a ticket has an unknown party"),
            (
                self.requests.values().all(|r| known(&r.opener) && r.answers.keys().all(known)),
                "a request has an unknown party",
            ),
            (
                members.clone().flat_map(|m| &m.down_by).all(|party| present.contains(party))
                    && (self.requests.values().flat_map(|r| r.answers.keys()))
                        .all(|party| present.contains(party)),
                "a party without a node has a say",
            ),
            (
                self.names.iter().all(|(party, names)| known(party) && !names.is_empty()),
                "names have an unknown party, or a party with names has none",
            ),
            (
                self.is_decided_sound(),
                "a decided request has an unknown party, or too many are kept",
            ),
            (self.are_shares_sound(), "a share is not one, or of an unknown party"),
        ];
        let flaw = rules.into_iter().find(|(holds, _)| !holds).map(|(_, flaw)| flaw);
        let flaw = flaw.or_else(|| self.flaw_in_extras()).or_else(|| self.flaw_in_data());
        flaw.or_else(|| self.flaw_in_jobs())
    }
}

fn next_revision() -> u64 {
    REVISIONS.fetch_add(1, Ordering::Relaxed)
}

fn distinct<T: Ord>(mut items: impl Iterator<Item = T>) -> bool {
    let mut seen = BTreeSet::new();
    items.all(|item| seen.insert(item))
}

impl StateMachine for State {
    fn apply(&mut self, at: &At, command: &Command) -> Result<Outcome, Halt> {
        match self.act(at, command) {
            Ok(()) => Ok(Outcome::Done),
            Err(Stop::Refused(refusal)) => Ok(Outcome::Refused(refusal.code())),
            Err(Stop::Halted(halt)) => Err(halt),
        }
    }

    fn may_write(&self, author: NodeId) -> bool {
        self.is_member(author)
    }

    fn snapshot(&self) -> Vec<u8> {
        let mut bytes = postcard::to_stdvec(&self.facts);
        if self.facts.level.number >= extras::SINCE {
            bytes = bytes.and_then(|bytes| postcard::to_extend(&self.facts.extras, bytes));
        }
        if self.facts.level.number >= data::SINCE {
            bytes = bytes.and_then(|bytes| postcard::to_extend(&self.facts.data, bytes));
        }
        if self.facts.level.number >= decided::SINCE {
            bytes = bytes.and_then(|bytes| postcard::to_extend(&self.facts.decided, bytes));
        }
        if self.facts.level.number >= jobs::SINCE {
            bytes = bytes.and_then(|bytes| postcard::to_extend(&self.facts.jobs, bytes));
        }
        if self.facts.level.number >= server::SINCE {
            bytes = bytes.and_then(|bytes| postcard::to_extend(&self.facts.jobs.servers, bytes));
        }
        if self.facts.level.number >= share::SINCE {
            bytes = bytes.and_then(|bytes| postcard::to_extend(&self.facts.shares, bytes));
        }
        bytes.expect("the state holds nothing that postcard cannot encode")
    }

    fn weight(&self) -> u64 {
        let Facts { members, removed, tickets, requests, names, data, decided, jobs, .. } =
            &self.facts;
        let names: usize = names.values().map(BTreeMap::len).sum();
        let requests = requests.len() + decided.len();
        let others = members.len() + removed.len() + tickets.len() + requests;
        // A name takes some thirty bytes and its hash as many; a member or a ticket about twice that.
        (64 * names + 128 * others) as u64 + data.weight() + jobs.weight() + jobs.budgets_weight()
    }

    fn restore(&mut self, bytes: &[u8]) -> Result<(), Halt> {
        let damaged = |what: &str| Halt::Damaged(what.to_owned());
        let (level, _): (Level, _) =
            postcard::take_from_bytes(bytes).map_err(|_| damaged("it has no level"))?;
        level.check_support(self.supports)?;
        // A level that promises more kinds than it has would make this node halt over the first
        // command that does not exist.
        if level != Level::default() && Level::known(level.number) != Some(level) {
            return Err(damaged("its level is not what it says"));
        }
        let undecodable = || damaged("it cannot be decoded");
        let (mut facts, mut rest): (Facts, &[u8]) =
            postcard::take_from_bytes(bytes).map_err(|_| undecodable())?;
        if level.number >= extras::SINCE {
            (facts.extras, rest) = postcard::take_from_bytes(rest).map_err(|_| undecodable())?;
        }
        if level.number >= data::SINCE {
            (facts.data, rest) = postcard::take_from_bytes(rest).map_err(|_| undecodable())?;
            facts.data.weigh();
        }
        if level.number >= decided::SINCE {
            (facts.decided, rest) = postcard::take_from_bytes(rest).map_err(|_| undecodable())?;
        }
        if level.number >= jobs::SINCE {
            (facts.jobs, rest) = postcard::take_from_bytes(rest).map_err(|_| undecodable())?;
            facts.jobs.weigh();
        }
        if level.number >= server::SINCE {
            (facts.jobs.servers, rest) =
                postcard::take_from_bytes(rest).map_err(|_| undecodable())?;
        }
        if level.number >= share::SINCE {
            (facts.shares, rest) = postcard::take_from_bytes(rest).map_err(|_| undecodable())?;
        }
        if !rest.is_empty() {
            return Err(undecodable());
        }
        if let Some(flaw) = facts.flaw() {
            return Err(damaged(flaw));
        }
        let (supports, revision) = (self.supports, next_revision());
        let (data_revision, jobs_revision) = (revision, revision);
        let restored = Self { supports, revision, data_revision, jobs_revision, facts };
        // Maps out of order and numbers written the long way decode as well, but no node wrote
        // them: this one would give a digest that differs from what it was given.
        if restored.snapshot() != bytes {
            return Err(damaged("it is not in canonical form"));
        }
        *self = restored;
        Ok(())
    }

    fn node_at(&self, seat: RaftId) -> Option<NodeId> {
        self.facts.node_at(seat)
    }

    fn seat_of(&self, node: NodeId) -> Option<RaftId> {
        self.facts.members.get(&node)?.seat
    }

    fn is_removed(&self, node: NodeId) -> bool {
        self.facts.removed.contains(&node)
    }

    fn allows(&self, next: &Config) -> bool {
        self.facts.allows(next)
    }

    fn on_config(&mut self, index: u64, config: &Config) {
        self.facts.on_config(index, config);
        self.touch();
    }

    fn on_recovery(&mut self, index: u64, epoch: Epoch, survivor: RaftId) {
        self.facts.on_recovery(index, epoch, survivor);
        self.touch();
    }
}
