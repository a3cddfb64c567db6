//! Serving: whom to send which chunk next.

use std::collections::{BTreeMap, VecDeque};

use mesh_consensus::id::NodeId;
use mesh_consensus::time::Time;

use super::Ask;
use crate::bitmap::Bitmap;

/// Chunks of our choice that a puller may ask for ahead.
const MAX_ANY: u32 = 64;
/// Chunks that are watched on their way from puller to puller.
const MAX_FRESH: usize = 128;
/// A chunk that one more puller has gives way to so many turns.
const RARE: u64 = 2;
/// This part of the chunks, the smallest, is handed out first, and as many last.
const SMALL_PART: usize = 8;
/// But no more than this.
const MAX_SMALL: usize = 64;
/// After so many looks in a row at a full uplink, one upload less is tried.
const FULL_LOOKS: u32 = 16;
/// Below this part of the most that was seen, the uplink is not full.
const FULL: f64 = 0.97;
/// Bytes after which it is worth a look how fast they went.
const HALF_CHUNK: f64 = 524_288.0;
/// Nodes that are told about in one answer.
const MAX_OTHERS: usize = 32;

/// How a node serves one version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServeSettings {
    /// Uploads at a time if they fill the uplink. Few: a whole chunk can be passed on, and halves help nobody.
    pub slots: usize,
    /// Uploads at a time if fewer do not fill it, because those who receive are busy.
    pub max_slots: usize,
    /// Pullers at a time. Further ones are refused.
    pub pullers: usize,
    /// Asks that may wait per puller. Further ones are refused.
    pub queue: usize,
}

impl Default for ServeSettings {
    fn default() -> Self {
        Self { slots: 2, max_slots: 16, pullers: 64, queue: 32 }
    }
}

/// What to tell a puller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reply {
    /// Begin to send it this chunk, and call [`Serve::on_sent`] when that is over.
    Chunk(NodeId, u32),
    /// It will not get this chunk here.
    Refused(NodeId, u32),
    /// There is nothing to choose for it: every chunk is at some puller already.
    Nothing(NodeId),
}

/// One who pulls from us.
#[derive(Debug)]
struct Puller {
    /// What it said that it has, and what we have begun to send it.
    holds: Bitmap,
    queue: VecDeque<Ask>,
    sending: Option<u32>,
    /// When its turn last was.
    turn: u64,
}

/// What we send of one version. See the module.
#[derive(Debug)]
pub struct Serve {
    settings: ServeSettings,
    /// In which order chunks are handed out: all before `cursor` are at some puller.
    order: Vec<u32>,
    cursor: usize,
    /// At how many pullers each chunk is, or will be.
    seen: Vec<u16>,
    /// How often we handed out each chunk.
    handed: Vec<u16>,
    pullers: BTreeMap<NodeId, Puller>,
    /// Pullers that have everything and have left: the last few.
    finished: VecDeque<NodeId>,
    /// Chunks that we handed out lately and that not all pullers have.
    fresh: VecDeque<u32>,
    turn: u64,
    uplink: Uplink,
}

impl Serve {
    /// Serves chunks of these lengths. The seed decides in which order they are handed out.
    pub fn new(lengths: &[u32], seed: u64, settings: ServeSettings) -> Self {
        let order = order(lengths, seed);
        Self {
            uplink: Uplink::new(settings.slots),
            settings,
            seen: vec![0; order.len()],
            handed: vec![0; order.len()],
            order,
            cursor: 0,
            pullers: BTreeMap::new(),
            finished: VecDeque::new(),
            fresh: VecDeque::new(),
            turn: 0,
        }
    }

    /// `node` pulls, and has this already. Answers whether there is room for it, and whether its bitmap
    /// is one.
    pub fn on_peer(&mut self, node: NodeId, has: Bitmap) -> bool {
        if has.len() != self.order.len() {
            return false;
        }
        self.on_gone(node);
        if self.pullers.len() >= self.settings.pullers {
            return false;
        }
        for chunk in has.present() {
            self.seen[chunk] = self.seen[chunk].saturating_add(1);
        }
        let puller = Puller { holds: has, queue: VecDeque::new(), sending: None, turn: 0 };
        self.pullers.insert(node, puller);
        true
    }

    /// `node` has got these meanwhile. Answers whether they exist.
    pub fn on_have(&mut self, node: NodeId, chunks: &[u32]) -> bool {
        if chunks.iter().any(|chunk| *chunk as usize >= self.order.len()) {
            return false;
        }
        for chunk in chunks {
            self.hold(node, *chunk);
        }
        true
    }

    fn hold(&mut self, node: NodeId, chunk: u32) {
        let Some(puller) = self.pullers.get_mut(&node) else { return };
        if puller.holds.set(chunk as usize) {
            let seen = &mut self.seen[chunk as usize];
            *seen = seen.saturating_add(1);
        }
    }

    /// `node` asks. If its queue is full it is told what it will not get.
    pub fn on_ask(&mut self, node: NodeId, ask: Ask) -> Option<Reply> {
        let puller = self.pullers.get_mut(&node)?;
        let is_full = puller.queue.len() >= self.settings.queue;
        match ask {
            Ask::Chunk(chunk) if is_full || chunk as usize >= self.order.len() => {
                Some(Reply::Refused(node, chunk))
            }
            Ask::Any(_) if is_full => Some(Reply::Nothing(node)),
            Ask::Any(0) => None,
            Ask::Any(count) => {
                puller.queue.push_back(Ask::Any(count.min(MAX_ANY)));
                None
            }
            Ask::Chunk(_) => {
                puller.queue.push_back(ask);
                None
            }
        }
    }

    /// `node` does not want this chunk any more. What is on its way stays there.
    pub fn on_cancel(&mut self, node: NodeId, chunk: u32) {
        if let Some(puller) = self.pullers.get_mut(&node) {
            puller.queue.retain(|ask| *ask != Ask::Chunk(chunk));
        }
    }

    /// So many bytes have left, for whomever.
    pub fn on_bytes(&mut self, now: Time, bytes: u64) {
        self.uplink.add(now, bytes);
    }

    /// The chunk that was being sent to `node` is sent, or will never be.
    pub fn on_sent(&mut self, node: NodeId) {
        if let Some(puller) = self.pullers.get_mut(&node) {
            puller.sending = None;
        }
    }

    /// `node` pulls no more. If it has everything it counts on; else what only it had can be chosen again.
    pub fn on_gone(&mut self, node: NodeId) {
        let Some(puller) = self.pullers.remove(&node) else { return };
        if puller.holds.is_full() && puller.sending.is_none() {
            self.finished.push_back(node);
            if self.finished.len() > MAX_OTHERS {
                self.finished.pop_front();
            }
            return;
        }
        for chunk in puller.holds.present() {
            self.seen[chunk] = self.seen[chunk].saturating_sub(1);
        }
        self.cursor = 0;
    }

    /// Who else pulls, or has just finished: whom `node` may link with. At most a few dozen.
    pub fn others(&self, node: NodeId) -> Vec<NodeId> {
        let all = self.finished.iter().chain(self.pullers.keys());
        let mut others: Vec<NodeId> = all.copied().filter(|other| *other != node).collect();
        fastrand::Rng::with_seed(super::links::tag(node)).shuffle(&mut others);
        others.truncate(MAX_OTHERS);
        others
    }

    /// How often we handed out each chunk.
    pub fn handed(&self) -> &[u16] {
        &self.handed
    }

    /// Whether every chunk is at some puller, or on its way there.
    pub fn is_spread(&self) -> bool {
        self.seen.iter().all(|seen| *seen > 0)
    }

    /// What to hand to `node` if we may choose: something that we have and no puller.
    pub fn pick(&mut self, node: NodeId, have: &Bitmap) -> Option<u32> {
        let puller = self.pullers.get(&node)?;
        while self.order.get(self.cursor).is_some_and(|chunk| self.seen[*chunk as usize] > 0) {
            self.cursor += 1;
        }
        let mut rest = self.order[self.cursor..].iter().copied();
        rest.find(|chunk| {
            let at = *chunk as usize;
            self.seen[at] == 0 && have.get(at) && !puller.holds.get(at)
        })
    }

    /// How much each puller has to pass on of what we handed out lately, in copies times 1024.
    fn busy(&mut self) -> BTreeMap<NodeId, u64> {
        let all = self.pullers.len() as u64;
        let seen = &self.seen;
        self.fresh.retain(|chunk| u64::from(seen[*chunk as usize]) < all);
        let mut busy = BTreeMap::new();
        for (node, puller) in &self.pullers {
            let held = self.fresh.iter().filter(|chunk| puller.holds.get(**chunk as usize));
            let copies = held.map(|chunk| {
                let seen = u64::from(seen[*chunk as usize]);
                1024 * all.saturating_sub(seen) / seen.max(1)
            });
            busy.insert(*node, copies.sum());
        }
        busy
    }

    /// Who comes first: the lowest.
    ///
    /// What we choose goes to whoever has least to pass on, so that no uplink falls idle, and whoever
    /// passes on more gets more. What is asked by number goes first to those who have least, as all wait for the last; among
    /// equals turns go round, and rare chunks count a little.
    fn urgency(&self, node: NodeId, busy: &BTreeMap<NodeId, u64>) -> (u8, u64, u64) {
        let Some(puller) = self.pullers.get(&node) else { return (u8::MAX, 0, 0) };
        match puller.queue.front() {
            Some(Ask::Chunk(chunk)) => {
                let seen = self.seen.get(*chunk as usize).copied().unwrap_or(0);
                let step = (self.order.len() / 64).max(4);
                let wealth = puller.holds.count() / step;
                (1, wealth as u64, puller.turn + RARE * u64::from(seen))
            }
            _ => (0, busy.get(&node).copied().unwrap_or(0), puller.turn),
        }
    }

    /// What to do next, until there is nothing: `have` is what we have. Turns go round.
    pub fn next(&mut self, now: Time, have: &Bitmap) -> Option<Reply> {
        let sending = self.pullers.values().filter(|puller| puller.sending.is_some()).count();
        let (least, most) = (self.settings.slots, self.settings.max_slots);
        if sending >= self.uplink.slots(now, sending, least, most) {
            return None;
        }
        let waiting =
            self.pullers.iter().filter(|(_, p)| p.sending.is_none() && !p.queue.is_empty());
        let waiting: Vec<NodeId> = waiting.map(|(node, _)| *node).collect();
        let busy = self.busy();
        let node = *waiting.iter().min_by_key(|node| self.urgency(**node, &busy))?;
        self.turn += 1;
        let turn = self.turn;
        let puller = self.pullers.get_mut(&node)?;
        let ask = puller.queue.pop_front()?;
        let chunk = match ask {
            Ask::Chunk(chunk) if have.get(chunk as usize) => chunk,
            Ask::Chunk(chunk) => return Some(Reply::Refused(node, chunk)),
            Ask::Any(count) => {
                let Some(chunk) = self.pick(node, have) else {
                    let puller = self.pullers.get_mut(&node)?;
                    puller.queue.retain(|ask| !matches!(ask, Ask::Any(_)));
                    return Some(Reply::Nothing(node));
                };
                if count > 1 {
                    self.pullers.get_mut(&node)?.queue.push_front(Ask::Any(count - 1));
                }
                chunk
            }
        };
        let puller = self.pullers.get_mut(&node)?;
        puller.turn = turn;
        puller.sending = Some(chunk);
        self.hold(node, chunk);
        if matches!(ask, Ask::Any(_)) {
            self.fresh.push_back(chunk);
            if self.fresh.len() > MAX_FRESH {
                self.fresh.pop_front();
            }
        }
        let handed = &mut self.handed[chunk as usize];
        *handed = handed.saturating_add(1);
        Some(Reply::Chunk(node, chunk))
    }
}

/// How full the uplink is, and how many uploads it takes to fill it.
#[derive(Debug)]
struct Uplink {
    began: Option<Time>,
    bytes: u64,
    /// Bytes a millisecond: the most that was seen, and slowly less.
    peak: f64,
    /// Looks in a row at which it was full.
    full: u32,
    slots: usize,
}

impl Uplink {
    fn new(slots: usize) -> Self {
        Self { began: None, bytes: 0, peak: 0.0, full: 0, slots }
    }

    fn add(&mut self, now: Time, bytes: u64) {
        self.began.get_or_insert(now);
        self.bytes += bytes;
    }

    /// How many uploads there should be. Looks at what was sent since it last looked.
    fn slots(&mut self, now: Time, sending: usize, least: usize, most: usize) -> usize {
        let Some(began) = self.began else { return self.slots };
        let span = now.since(began).as_secs_f64() * 1000.0;
        let enough = (HALF_CHUNK / self.peak.max(1.0)).clamp(20.0, 500.0);
        if span < enough {
            return self.slots;
        }
        let rate = self.bytes as f64 / span;
        self.peak = rate.max(0.998 * self.peak);
        if rate < FULL * self.peak {
            self.full = 0;
            if sending >= self.slots {
                self.slots = (self.slots + 1).min(most);
            }
        } else {
            self.full += 1;
            if self.full >= FULL_LOOKS {
                self.full = 0;
                self.slots = (self.slots - 1).max(least);
            }
        }
        self.began = Some(now);
        self.bytes = 0;
        self.slots
    }
}

/// The order in which chunks are handed out: at random, but small ones first and last. The first chunks are what
/// pullers wait for in order to have something to pass on, and the last are what all wait for in the end.
fn order(lengths: &[u32], seed: u64) -> Vec<u32> {
    let count = u32::try_from(lengths.len()).unwrap_or(u32::MAX);
    let mut order: Vec<u32> = (0..count).collect();
    let small = (order.len() / SMALL_PART).min(MAX_SMALL);
    order.sort_by_key(|chunk| lengths[*chunk as usize]);
    let smallest: Vec<u32> = order.drain(..2 * small).collect();
    fastrand::Rng::with_seed(seed).shuffle(&mut order);
    let first = smallest.iter().skip(1).step_by(2);
    let last = smallest.iter().step_by(2).rev();
    first.chain(&order).chain(last).copied().collect()
}

#[cfg(test)]
mod tests {
    use super::super::sim::id;
    use super::*;

    const CHUNKS: usize = 24;

    fn serve(pullers: usize) -> Serve {
        let mut serve = Serve::new(&[1 << 20; CHUNKS], 1, ServeSettings::default());
        for puller in 0..pullers {
            assert!(serve.on_peer(id(puller), Bitmap::new(CHUNKS)));
        }
        serve
    }

    /// Sends until there is nothing to do, one chunk after the other.
    fn drain(serve: &mut Serve) -> Vec<Reply> {
        let mut replies = Vec::new();
        while let Some(reply) = serve.next(Time(1), &Bitmap::full(CHUNKS)) {
            if let Reply::Chunk(node, _) = reply {
                serve.on_sent(node);
            }
            replies.push(reply);
        }
        replies
    }

    #[test]
    fn each_chunk_is_chosen_once_for_all_pullers_together() {
        let mut serve = serve(4);
        for puller in 0..4 {
            assert_eq!(serve.on_ask(id(puller), Ask::Any(60)), None);
        }
        let replies = drain(&mut serve);
        assert!(serve.handed().iter().all(|handed| *handed == 1) && serve.is_spread());
        let nothing = replies.iter().filter(|reply| matches!(reply, Reply::Nothing(_)));
        assert_eq!((nothing.count(), replies.len()), (4, CHUNKS + 4));
    }

    #[test]
    fn what_another_puller_has_is_not_chosen() {
        let mut serve = serve(2);
        assert!(serve.on_have(id(1), &(1..CHUNKS as u32).collect::<Vec<_>>()));
        assert_eq!(serve.pick(id(0), &Bitmap::full(CHUNKS)), Some(0));
        assert_eq!(serve.pick(id(0), &Bitmap::new(CHUNKS)), None, "we do not have it");
    }

    #[test]
    fn who_is_gone_is_forgotten_unless_it_has_everything() {
        let mut serve = serve(3);
        let all: Vec<u32> = (0..CHUNKS as u32).collect();
        serve.on_have(id(1), &all[1..]);
        serve.on_gone(id(1));
        serve.on_ask(id(0), Ask::Any(60));
        assert_eq!(drain(&mut serve).len(), CHUNKS + 1);
        serve.on_gone(id(0));
        assert!(serve.is_spread() && serve.others(id(2)) == [id(0)]);
        serve.on_gone(id(2));
        assert!(serve.is_spread());
    }

    #[test]
    fn turns_go_round_among_equals_and_uploads_are_few() {
        let mut serve = serve(3);
        for puller in 0..3 {
            for chunk in 0..3 {
                serve.on_ask(id(puller), Ask::Chunk(3 * puller as u32 + chunk));
            }
        }
        let have = Bitmap::full(CHUNKS);
        let mut sent = Vec::new();
        while sent.len() < 9 {
            let Some(Reply::Chunk(node, _)) = serve.next(Time(1), &have) else {
                // One is left, and its stream is in use.
                serve.on_sent(sent[7]);
                continue;
            };
            sent.push(node);
            if sent.len() == 2 {
                assert_eq!(serve.next(Time(1), &have), None, "two at a time");
            }
            if sent.len() >= 2 {
                serve.on_sent(sent[sent.len() - 2]);
            }
        }
        for turns in sent.chunks(3) {
            let each: std::collections::BTreeSet<_> = turns.iter().collect();
            assert_eq!(each.len(), 3);
        }
    }

    #[test]
    fn more_uploads_are_begun_if_a_few_do_not_fill_the_uplink() {
        let mut serve = serve(8);
        for puller in 0..8 {
            serve.on_ask(id(puller), Ask::Any(9));
        }
        let have = Bitmap::full(CHUNKS);
        let mut begun = 0;
        let mut run = |serve: &mut Serve, from: u64, bytes: u64| {
            for millis in (from..from + 1000).step_by(10) {
                serve.on_bytes(Time(millis), bytes);
                while serve.next(Time(millis), &have).is_some() {
                    begun += 1;
                }
            }
            begun
        };
        assert_eq!(run(&mut serve, 1000, 100_000), 2);
        assert!(run(&mut serve, 2000, 50_000) > 4);
    }

    #[test]
    fn queues_are_bounded_and_what_does_not_exist_is_refused() {
        let mut serve = serve(1);
        let no = |chunk| Some(Reply::Refused(id(0), chunk));
        assert_eq!(serve.on_ask(id(0), Ask::Chunk(CHUNKS as u32)), no(CHUNKS as u32));
        for _ in 0..ServeSettings::default().queue {
            assert_eq!(serve.on_ask(id(0), Ask::Chunk(3)), None);
        }
        assert_eq!(serve.on_ask(id(0), Ask::Chunk(3)), no(3));
        assert_eq!(serve.on_ask(id(0), Ask::Any(1)), Some(Reply::Nothing(id(0))));
        assert!(!serve.on_have(id(0), &[CHUNKS as u32]));
        assert!(!serve.on_peer(id(1), Bitmap::new(CHUNKS + 1)));
        serve.on_cancel(id(0), 3);
        assert_eq!(drain(&mut serve), []);
        serve.on_ask(id(0), Ask::Chunk(5));
        assert_eq!(serve.next(Time(1), &Bitmap::new(CHUNKS)), no(5), "we do not have it");
        for puller in 2..200 {
            serve.on_peer(id(puller), Bitmap::new(CHUNKS));
        }
        assert_eq!(serve.pullers.len(), ServeSettings::default().pullers);
    }

    #[test]
    fn small_chunks_are_handed_out_first_and_last() {
        let lengths: Vec<u32> = (1..=80).rev().collect();
        let order: Vec<u32> = order(&lengths, 1).iter().map(|at| lengths[*at as usize]).collect();
        assert!(order[..10].iter().chain(&order[70..]).all(|bytes| *bytes <= 20));
        assert_eq!(order[79], 1);
        let mut sorted = order.clone();
        sorted.sort_unstable();
        assert!(sorted.into_iter().eq(1..=80));
    }
}
