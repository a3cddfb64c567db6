//! What this node has heard about the others, and when.
//!
//! Pure: the moment is an argument, and who is a member is asked of the caller. Per member it holds
//! the newest whole record and the newest update of it; a record is only about its signer, so nobody
//! can say anything about anybody else, least of all that it is dead.
//!
//! Gossip loses messages and newcomers have heard none, so nodes also pull: one sends its
//! [`digest`](View::digest), the other answers with what is [newer](View::newer_than). Such a record
//! may be old, so it travels with its age; otherwise a node that died an hour ago would look alive
//! to whoever has just started.
//!
//! ```text
//!   gossip ──► take ─────────┐            ┌──► get, nodes (record, load, age, silence)
//!   pull ────► take_relayed ─┴─► newest ──┤
//!                                         └──► digest, newer_than ──► others' pulls
//! ```

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use mesh_consensus::id::{MeshId, NodeId};
use serde::{Deserialize, Serialize};

use super::record::{Load, Record};
use super::signed::{RecordError, Said, Signed, Stamp};

/// The most bytes in one answer to a pull. Who wants more pulls again: its digest has moved on.
pub const MAX_PULL_BYTES: usize = 512 << 10;

/// A node whose own tick came this late was asleep, and takes nobody for silent because of it.
const OWN_GAP: Duration = Duration::from_secs(5);

/// What to make of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Judged {
    /// New and true to its signer: kept, and worth passing on.
    Good,
    /// Nothing wrong with it, nothing new in it, or not (yet) a member's.
    Stale,
    /// No honest node would send or forward it.
    Bad,
}

/// How far somebody's knowledge of a node goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Known {
    /// The node.
    pub node: NodeId,
    /// The newest that is known of it, with nothing missing before.
    pub stamp: Stamp,
}

/// A message that somebody else has kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Relayed {
    /// How long ago it was heard, as the one who kept it says.
    pub age_ms: u64,
    /// The signed bytes.
    pub bytes: Vec<u8>,
}

/// What is known of one node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sight<'a> {
    /// The node.
    pub node: NodeId,
    /// Its newest whole record. Its load may be older than `load`.
    pub record: &'a Record,
    /// Its newest load.
    pub load: &'a Load,
    /// How long ago it said anything.
    pub age: Duration,
    /// How long it was silent while this node listened: no more than `age`. An observer that was
    /// asleep, or has just started, has not heard anyone's silence.
    pub silence: Duration,
}

/// Messages of one node that may come at once …
const AT_ONCE: f64 = 16.0;
/// … and how many more each second. An honest node says at most one a second.
const PER_SECOND: f64 = 2.0;

/// What has been heard from the members. At most two messages of each are kept.
#[derive(Debug)]
pub struct View {
    mesh: MeshId,
    /// Only nodes that were members when they were heard: see [`View::retain`].
    nodes: BTreeMap<NodeId, Words>,
    /// Since when each of the members could have been heard: see [`View::expect`].
    expected: BTreeMap<NodeId, Instant>,
    /// Since when this node has listened without a gap.
    listening_since: Instant,
    last_tick: Instant,
}

/// The newest words of one node.
#[derive(Debug, Default)]
struct Words {
    whole: Option<Word<Record>>,
    /// Later than `whole`, if both are there. It may belong to a whole record that was missed.
    update: Option<Word<Update>>,
    /// What was left of its budget, and when.
    budget: Option<(f64, Instant)>,
}

#[derive(Debug)]
struct Word<T> {
    stamp: Stamp,
    bytes: Vec<u8>,
    heard: Heard,
    content: T,
}

#[derive(Debug)]
struct Update {
    of: u64,
    load: Load,
}

/// When something was heard, and how old it already was.
#[derive(Debug, Clone, Copy)]
struct Heard {
    at: Instant,
    age: Duration,
}

impl Heard {
    fn age(self, now: Instant) -> Duration {
        now.saturating_duration_since(self.at).saturating_add(self.age)
    }
}

impl View {
    /// Knows nobody yet.
    pub fn new(mesh: MeshId, now: Instant) -> Self {
        Self {
            mesh,
            nodes: BTreeMap::new(),
            expected: BTreeMap::new(),
            listening_since: now,
            last_tick: now,
        }
    }

    /// Judges a message heard at `now`, and keeps it if it is good.
    ///
    /// A node's own messages are to be given to its view, too: others pull them from there.
    pub fn take(
        &mut self,
        now: Instant,
        bytes: &[u8],
        is_member: impl Fn(NodeId) -> bool,
    ) -> Judged {
        self.hear(Heard { at: now, age: Duration::ZERO }, bytes, is_member)
    }

    /// The same for a message that another node had kept.
    pub fn take_relayed(
        &mut self,
        now: Instant,
        relayed: &Relayed,
        is_member: impl Fn(NodeId) -> bool,
    ) -> Judged {
        let heard = Heard { at: now, age: Duration::from_millis(relayed.age_ms) };
        self.hear(heard, &relayed.bytes, is_member)
    }

    fn hear(&mut self, heard: Heard, bytes: &[u8], is_member: impl Fn(NodeId) -> bool) -> Judged {
        let signed = match Signed::parse(bytes) {
            Ok(signed) => signed,
            // From a later version: whoever forwards it does no wrong.
            Err(RecordError::OtherFormat { .. }) => return Judged::Stale,
            Err(_) => return Judged::Bad,
        };
        // The cheap questions come before the signature. A newcomer whose admission has not got here
        // yet is no reason to punish whoever forwards its records.
        let node = signed.node();
        if signed.mesh() == self.mesh
            && (!is_member(node) || self.nodes.get(&node).is_some_and(|words| words.has(&signed)))
        {
            return Judged::Stale;
        }
        // Whoever talks too much is not passed on. Only what it signed counts against it.
        if self.nodes.get(&node).is_some_and(|words| words.budget(heard.at) < 1.0) {
            return Judged::Stale;
        }
        if signed.verify(self.mesh).is_err() {
            return Judged::Bad;
        }
        let words = self.nodes.entry(node).or_default();
        words.budget = Some((words.budget(heard.at) - 1.0, heard.at));
        words.keep(heard, signed);
        Judged::Good
    }

    /// Forgets everyone who is not a member any more.
    pub fn retain(&mut self, is_member: impl Fn(NodeId) -> bool) {
        self.nodes.retain(|node, _| is_member(*node));
        self.expected.retain(|node, _| is_member(*node));
    }

    /// These are members: from now on it is noticed if one of them says nothing.
    pub fn expect(&mut self, now: Instant, members: impl IntoIterator<Item = NodeId>) {
        for node in members {
            self.expected.entry(node).or_insert(now);
        }
    }

    /// To be called every second or so, even if nothing was heard: so the view notices that its own
    /// node was paused, and does not take the others for silent.
    pub fn on_tick(&mut self, now: Instant) {
        if now.saturating_duration_since(self.last_tick) > OWN_GAP {
            self.listening_since = now;
        }
        self.last_tick = now;
    }

    /// What is known of `node`.
    pub fn get(&self, node: NodeId, now: Instant) -> Option<Sight<'_>> {
        let words = self.nodes.get(&node)?;
        let whole = words.whole.as_ref()?;
        let load = words.fitting_update().map_or(&whole.content.load, |u| &u.content.load);
        let age = words.age(now)?;
        let silence = self.silence(node, now);
        Some(Sight { node, record: &whole.content, load, age, silence })
    }

    /// How long `node` was silent while this node listened, also if it was never heard at all.
    pub fn silence(&self, node: NodeId, now: Instant) -> Duration {
        let age = self.nodes.get(&node).and_then(|words| words.age(now));
        let expected =
            || self.expected.get(&node).map(|since| now.saturating_duration_since(*since));
        let listened = now.saturating_duration_since(self.listening_since);
        age.or_else(expected).unwrap_or_default().min(listened)
    }

    /// What is known of everyone, by id.
    pub fn nodes(&self, now: Instant) -> impl Iterator<Item = Sight<'_>> {
        self.nodes.keys().filter_map(move |node| self.get(*node, now))
    }

    /// The newest stamp heard under the name of `node`, whether or not anything was missed before.
    pub fn stamp(&self, node: NodeId) -> Option<Stamp> {
        self.nodes.get(&node)?.newest()
    }

    /// How far this node's knowledge goes, for a pull.
    pub fn digest(&self) -> Vec<Known> {
        let known = |(node, words): (&NodeId, &Words)| {
            Some(Known { node: *node, stamp: words.complete()? })
        };
        self.nodes.iter().filter_map(known).collect()
    }

    /// What is kept here and missing in `digest`, up to [`MAX_PULL_BYTES`].
    ///
    /// The digest is the asker's: repeated or unknown nodes in it do no harm.
    pub fn newer_than(&self, now: Instant, digest: &[Known]) -> Vec<Relayed> {
        let ours = digest.iter().filter(|known| self.nodes.contains_key(&known.node));
        let known: BTreeMap<NodeId, Stamp> = ours.map(|known| (known.node, known.stamp)).collect();
        let mut room = MAX_PULL_BYTES;
        let mut answer = Vec::new();
        for (node, words) in &self.nodes {
            for (bytes, heard) in words.after(known.get(node).copied()) {
                let Some(left) = room.checked_sub(bytes.len()) else { return answer };
                room = left;
                let age_ms = u64::try_from(heard.age(now).as_millis()).unwrap_or(u64::MAX);
                answer.push(Relayed { age_ms, bytes: bytes.to_vec() });
            }
        }
        answer
    }
}

impl Words {
    /// How many messages of this node may come at `now`.
    fn budget(&self, now: Instant) -> f64 {
        let Some((left, at)) = self.budget else { return AT_ONCE };
        let gained = now.saturating_duration_since(at).as_secs_f64() * PER_SECOND;
        (left + gained).min(AT_ONCE)
    }

    /// Whether `signed` brings nothing new. Of two messages with one stamp the first counts.
    fn has(&self, signed: &Signed) -> bool {
        let stamp = signed.stamp();
        match signed.said() {
            Said::Update { .. } => self.newest() >= Some(stamp),
            // A whole record that was overtaken by its own update is still wanted.
            Said::Whole(_) => {
                self.whole.as_ref().is_some_and(|whole| whole.stamp >= stamp)
                    || self.newest().is_some_and(|newest| newest.incarnation > stamp.incarnation)
            }
        }
    }

    fn keep(&mut self, heard: Heard, signed: Signed) {
        let stamp = signed.stamp();
        match signed.into_parts() {
            (bytes, Said::Whole(content)) => {
                self.update.take_if(|update| update.stamp <= stamp);
                self.whole = Some(Word { stamp, bytes, heard, content });
            }
            (bytes, Said::Update { of, load }) => {
                self.update = Some(Word { stamp, bytes, heard, content: Update { of, load } });
            }
        }
    }

    fn newest(&self) -> Option<Stamp> {
        let whole = self.whole.as_ref().map(|whole| whole.stamp);
        whole.max(self.update.as_ref().map(|update| update.stamp))
    }

    /// The update, unless a whole record between the two was missed.
    fn fitting_update(&self) -> Option<&Word<Update>> {
        let whole = self.whole.as_ref()?.stamp;
        self.update.as_ref().filter(|update| {
            update.stamp.incarnation == whole.incarnation && update.content.of <= whole.sequence
        })
    }

    /// Up to where nothing is missing.
    fn complete(&self) -> Option<Stamp> {
        let whole = self.whole.as_ref()?.stamp;
        Some(self.fitting_update().map_or(whole, |update| update.stamp))
    }

    /// What is newer than `known`, the whole record first.
    fn after(&self, known: Option<Stamp>) -> impl Iterator<Item = (&[u8], Heard)> {
        let whole = self.whole.as_ref().map(|w| (w.stamp, w.bytes.as_slice(), w.heard));
        let update = self.fitting_update().map(|u| (u.stamp, u.bytes.as_slice(), u.heard));
        let newer = move |(stamp, _, _): &(Stamp, &[u8], Heard)| Some(*stamp) > known;
        whole.into_iter().chain(update).filter(newer).map(|(_, bytes, heard)| (bytes, heard))
    }

    fn age(&self, now: Instant) -> Option<Duration> {
        let whole = self.whole.as_ref().map(|whole| whole.heard.age(now));
        let update = self.update.as_ref().map(|update| update.heard.age(now));
        whole.into_iter().chain(update).min()
    }
}

#[cfg(test)]
mod tests;
