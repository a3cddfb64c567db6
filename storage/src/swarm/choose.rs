//! The choice: what to ask of whom now.

use std::collections::VecDeque;
use std::time::Duration;

use mesh_consensus::id::NodeId;
use mesh_consensus::time::Time;

use super::peer::{Asked, Peer};
use super::{Ask, Plan, Swarm};
use crate::bitmap::Bitmap;

/// Chunks among which the rarest is sought. All of them, unless a version is large.
const WINDOW: usize = 2048;
/// Chunks looked at in one poll in order to fill the window.
const SCAN: usize = 8192;
/// After a poll that saw a part only, the next comes this soon.
const SCAN_AGAIN: Duration = Duration::from_millis(5);
/// A source is asked for what others have only if they would need this many times as long.
const SPARE_SOURCE: f64 = 3.0;
/// A chunk that waits is moved to an idle peer only if it would wait this many times as long.
const STEAL: f64 = 1.5;
/// A second copy is asked for only if the first would need this many times as long.
const ENDGAME: f64 = 3.0;
/// And this many milliseconds more.
const ENDGAME_SLACK: f64 = 100.0;
/// A peer that stalled so often in a row gives its link to another.
const MAX_STRIKES: u32 = 3;

/// The chunks that can be asked for, as far as they were looked at.
#[derive(Debug)]
pub(super) struct Window {
    /// Missing chunks in an order of our own. What has come is swept out while scanning.
    order: Vec<u32>,
    cursor: usize,
    /// None of them twice.
    chunks: Vec<u32>,
    is_in: Bitmap,
}

impl Window {
    pub(super) fn new(have: &Bitmap, salt: u64) -> Self {
        let mut order: Vec<u32> = have.missing().filter_map(|at| u32::try_from(at).ok()).collect();
        fastrand::Rng::with_seed(salt).shuffle(&mut order);
        Self { order, cursor: 0, chunks: Vec::new(), is_in: Bitmap::new(have.len()) }
    }

    /// This chunk is worth a look.
    pub(super) fn hint(&mut self, chunk: u32) {
        if self.chunks.len() < WINDOW && self.is_in.set(chunk as usize) {
            self.chunks.push(chunk);
        }
    }

    /// Keeps only what `is_wanted`.
    fn retain(&mut self, mut is_wanted: impl FnMut(u32) -> bool) {
        let is_in = &mut self.is_in;
        self.chunks.retain(|chunk| is_wanted(*chunk) || !is_in.clear(*chunk as usize));
    }

    /// Looks at some more chunks. Answers whether it has been through all of them.
    fn fill(&mut self, have: &Bitmap, mut is_wanted: impl FnMut(u32) -> bool) -> bool {
        let mut steps = self.order.len().min(SCAN);
        let is_all = steps == self.order.len();
        while steps > 0 && self.chunks.len() < WINDOW && !self.order.is_empty() {
            steps -= 1;
            self.cursor %= self.order.len();
            let chunk = self.order[self.cursor];
            if have.get(chunk as usize) {
                self.order.swap_remove(self.cursor);
                continue;
            }
            self.cursor += 1;
            if !self.is_in.get(chunk as usize) && is_wanted(chunk) {
                self.hint(chunk);
            }
        }
        is_all
    }
}

impl Swarm {
    /// What to do now. To be called after events, and at `wake_at`.
    pub fn poll(&mut self, now: Time) -> Plan {
        let mut plan = Plan {
            cancels: std::mem::take(&mut self.cancels),
            drop: std::mem::take(&mut self.drops).into_iter().collect(),
            ..Plan::default()
        };
        if self.have.is_full() {
            plan.done = true;
            return plan;
        }
        self.expire(now, &mut plan);
        self.forgive(now);
        let (link, look_at) = self.links.open(now, self.settings.sources, self.settings.links);
        plan.link = link;
        wake(&mut plan, look_at);
        self.ask_any(now, &mut plan);
        self.ask_chunks(now, &mut plan);
        self.steal(now, &mut plan);
        self.ask_twice(now, &mut plan);
        self.set_alarms(now, &mut plan);
        plan
    }

    /// Missing chunks that were asked of nobody, as far as can be known: peers may be choosing.
    fn unasked(&self) -> usize {
        let chosen: usize = self.peers.values().map(|peer| peer.any as usize).sum();
        (self.have.len() - self.have.count()).saturating_sub(self.asked.len() + chosen)
    }

    fn timeout(&self) -> Duration {
        self.settings.least_timeout.max(4 * self.durations.median())
    }

    /// The rate of a peer that is not known yet: the middling one of those that are.
    fn usual_rate(&self) -> f64 {
        let mut rates: Vec<f64> = self.peers.values().filter_map(|peer| peer.rate()).collect();
        rates.sort_unstable_by(f64::total_cmp);
        rates.get(rates.len() / 2).copied().unwrap_or(10_000.0)
    }

    /// Whether somebody other than `node` who is not resting has this chunk.
    fn is_elsewhere(&self, now: Time, node: NodeId, chunk: u32) -> bool {
        self.peers.iter().any(|(other, peer)| {
            *other != node && peer.rests_until <= now && peer.has.get(chunk as usize)
        })
    }

    /// Gives up what did not come in time, if it can be had elsewhere, and rests from who owes it.
    fn expire(&mut self, now: Time, plan: &mut Plan) {
        let timeout = self.timeout();
        let stalled: Vec<NodeId> = self
            .peers
            .iter()
            .filter(|(_, peer)| {
                let oldest = peer.asked.front().map(|ask| ask.at);
                let oldest = oldest.or((peer.any > 0).then_some(peer.any_at));
                peer.rests_until <= now
                    && oldest.is_some_and(|at| peer.deadline(at, timeout) <= now)
            })
            .map(|(node, _)| *node)
            .collect();
        for node in stalled {
            self.timeouts += 1;
            let Some(peer) = self.peers.get_mut(&node) else { continue };
            peer.rest(now, timeout.max(self.settings.rest));
            peer.give_up_any();
            let strikes = peer.strikes;
            let chunks: Vec<u32> = peer.asked.iter().map(|ask| ask.chunk).collect();
            for chunk in chunks {
                if self.is_elsewhere(now, node, chunk) {
                    if let Some(peer) = self.peers.get_mut(&node) {
                        peer.forget(chunk);
                    }
                    self.unask(node, chunk);
                    plan.cancels.push((node, chunk));
                }
            }
            if strikes >= MAX_STRIKES && self.links.has_spare(now) {
                self.release(node);
                self.links.failed(now, node);
                plan.drop.push(node);
            }
        }
    }

    /// What a peer refused is asked of it again after its rest if nobody else has it.
    fn forgive(&mut self, now: Time) {
        let rested = |peer: &Peer| peer.rests_until <= now && !peer.refused.is_empty();
        let nodes: Vec<NodeId> =
            self.peers.iter().filter(|(_, peer)| rested(peer)).map(|(node, _)| *node).collect();
        for node in nodes {
            let refused =
                self.peers.get(&node).map(|peer| peer.refused.clone()).unwrap_or_default();
            let (gone, back): (VecDeque<u32>, VecDeque<u32>) =
                refused.into_iter().partition(|chunk| self.is_elsewhere(now, node, *chunk));
            let Some(peer) = self.peers.get_mut(&node) else { continue };
            peer.refused = gone;
            for chunk in back {
                peer.has.set(chunk as usize);
                self.window.hint(chunk);
            }
        }
    }

    /// Lets a lone source choose what nobody has yet.
    ///
    /// Two sources would now and then choose the same chunk for us: of several, chunks are asked by number.
    fn ask_any(&mut self, now: Time, plan: &mut Plan) {
        let unasked = self.unasked();
        let mean_chunk = self.mean_chunk;
        let mut sources = self.peers.iter_mut().filter(|(_, peer)| peer.is_source);
        let (Some((node, source)), None) = (sources.next(), sources.next()) else { return };
        if source.is_spent {
            return;
        }
        let (least, most) = (self.settings.min_credits, self.settings.max_credits);
        let count = source.credits(now, mean_chunk, least, most).min(unasked);
        if let Some(count) = u32::try_from(count).ok().filter(|count| *count > 0) {
            source.any += count;
            source.any_at = now;
            plan.asks.push((*node, Ask::Any(count)));
        }
    }

    /// Whether sources are asked for chunks by number: not while one of them is choosing, since nobody knows what.
    fn may_name(&self) -> bool {
        let mut sources = self.peers.values().filter(|peer| peer.is_source);
        if sources.clone().any(|source| source.any > 0) {
            return false;
        }
        sources.next().is_some_and(|source| source.is_spent) || sources.next().is_some()
    }

    /// Asks for chunks by number, the rarest first, of whoever should have sent it first.
    fn ask_chunks(&mut self, now: Time, plan: &mut Plan) {
        let (least, most) = (self.settings.min_credits, self.settings.max_credits);
        let mean_chunk = self.mean_chunk;
        let usual_rate = self.usual_rate();
        let may_name = self.may_name();
        let mut free: Vec<(NodeId, usize)> = Vec::new();
        for (node, peer) in &self.peers {
            let credits = peer.credits(now, mean_chunk, least, most);
            if credits > 0 && (!peer.is_source || may_name) {
                free.push((*node, credits));
            }
        }
        if free.is_empty() {
            return;
        }
        let (peers, asked, have) = (&self.peers, &self.asked, &self.have);
        let is_wanted = |chunk: u32| {
            !have.get(chunk as usize)
                && !asked.contains_key(&chunk)
                && free.iter().any(|(node, _)| {
                    peers.get(node).is_some_and(|peer| peer.has.get(chunk as usize))
                })
        };
        self.window.retain(is_wanted);
        let is_all = self.window.fill(have, is_wanted);

        let salt = self.salt;
        let mut ranked: Vec<(u32, u64, u32)> = self
            .window
            .chunks
            .iter()
            .map(|chunk| {
                let holders = peers.values().filter(|peer| peer.has.get(*chunk as usize)).count();
                (holders as u32, mix(salt, *chunk), *chunk)
            })
            .collect();
        ranked.sort_unstable();
        for (_, _, chunk) in ranked {
            if free.is_empty() {
                break;
            }
            let Some(node) = self.best(chunk, &free, usual_rate) else {
                continue;
            };
            self.ask(now, node, chunk, plan);
            for (_, credits) in free.iter_mut().filter(|(other, _)| *other == node) {
                *credits -= 1;
            }
            free.retain(|(_, credits)| *credits > 0);
        }
        if !is_all && !free.is_empty() {
            wake(plan, Some(now.after(SCAN_AGAIN)));
        }
    }

    /// Whom to ask for `chunk`: the one who should have sent it first. A source counts only if nobody
    /// else has it, or if all others are too busy.
    fn best(&self, chunk: u32, free: &[(NodeId, usize)], usual_rate: f64) -> Option<NodeId> {
        let mean_chunk = self.mean_chunk;
        let bytes = self.lengths.get(chunk as usize).copied()?;
        let mut best: [Option<(f64, NodeId)>; 2] = [None, None];
        for (node, _) in free {
            let Some(peer) = self.peers.get(node) else { continue };
            if !peer.has.get(chunk as usize) {
                continue;
            }
            let eta = peer.eta(bytes, mean_chunk, usual_rate);
            let best = &mut best[usize::from(peer.is_source)];
            if best.is_none_or(|(least, _)| eta < least) {
                *best = Some((eta, *node));
            }
        }
        let [peer, source] = best;
        let Some((source_eta, source)) = source else { return peer.map(|(_, node)| node) };
        // Those without credit count, too: they will have some soon. Not those who stalled.
        let others = self
            .peers
            .values()
            .filter(|p| !p.is_source && p.strikes == 0 && p.has.get(chunk as usize));
        let least = others
            .map(|peer| peer.eta(bytes, mean_chunk, usual_rate))
            .min_by(f64::total_cmp)
            .unwrap_or(f64::INFINITY);
        if least > SPARE_SOURCE * source_eta { Some(source) } else { peer.map(|(_, node)| node) }
    }

    /// Writes down that `node` is asked for `chunk`.
    fn ask(&mut self, now: Time, node: NodeId, chunk: u32, plan: &mut Plan) {
        let bytes = self.lengths.get(chunk as usize).copied().unwrap_or(0);
        self.asked.entry(chunk).or_default().push(node);
        plan.asks.push((node, Ask::Chunk(chunk)));
        if let Some(peer) = self.peers.get_mut(&node) {
            peer.asked.push_back(Asked { chunk, bytes, at: now });
        }
    }

    /// Moves chunks that wait at a busy peer to one that is idle.
    fn steal(&mut self, now: Time, plan: &mut Plan) {
        let mean_chunk = self.mean_chunk;
        let usual_rate = self.usual_rate();
        let may_name = self.may_name();
        let idle: Vec<NodeId> = self
            .peers
            .iter()
            .filter(|(_, p)| p.owes() == 0 && p.rests_until <= now && (!p.is_source || may_name))
            .map(|(node, _)| *node)
            .collect();
        for node in idle {
            let Some(peer) = self.peers.get(&node) else { continue };
            let mut worst: Option<(f64, u32, NodeId)> = None;
            for (other, owner) in self.peers.iter().filter(|(other, _)| **other != node) {
                for (place, ask) in owner.asked.iter().enumerate() {
                    // What this very plan asks for cannot be cancelled by it.
                    if ask.at == now
                        || owner.began == Some(ask.chunk)
                        || !peer.has.get(ask.chunk as usize)
                        || self.asked.get(&ask.chunk).is_none_or(|nodes| nodes.len() != 1)
                    {
                        continue;
                    }
                    let due = owner.due(now, place, usual_rate);
                    let eta = peer.eta(ask.bytes, mean_chunk, usual_rate);
                    let eta = if peer.is_source { eta * SPARE_SOURCE } else { eta };
                    if due > STEAL * eta && worst.is_none_or(|(most, ..)| due > most) {
                        worst = Some((due, ask.chunk, *other));
                    }
                }
            }
            if let Some((_, chunk, from)) = worst {
                if let Some(peer) = self.peers.get_mut(&from) {
                    peer.forget(chunk);
                }
                self.asked.remove(&chunk);
                plan.cancels.push((from, chunk));
                self.ask(now, node, chunk, plan);
            }
        }
    }

    /// The endgame: once all is asked for, what waits at a slow peer is asked of a fast one, too.
    fn ask_twice(&mut self, now: Time, plan: &mut Plan) {
        if self.unasked() > 0 || self.asked.is_empty() {
            return;
        }
        let mean_chunk = self.mean_chunk;
        let usual_rate = self.usual_rate();
        let mut waiting: Vec<(f64, u32, NodeId)> = Vec::new();
        for (node, peer) in &self.peers {
            for (place, ask) in peer.asked.iter().enumerate() {
                if self.asked.get(&ask.chunk).is_some_and(|nodes| nodes.len() == 1) {
                    let is_stalled = peer.rests_until > now;
                    let due = match peer.began {
                        _ if is_stalled => f64::INFINITY,
                        // It is coming: nobody will be sooner.
                        Some(began) if began == ask.chunk => continue,
                        _ => peer.due(now, place, usual_rate),
                    };
                    waiting.push((due, ask.chunk, *node));
                }
            }
        }
        waiting.sort_unstable_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        for (due, chunk, first) in waiting {
            let bytes = self.lengths.get(chunk as usize).copied().unwrap_or(0);
            let second = self
                .peers
                .iter()
                .filter(|(node, peer)| {
                    let is_idle = peer.credits(now, mean_chunk, 1, 2) > 0;
                    **node != first && is_idle && peer.has.get(chunk as usize)
                })
                .map(|(node, peer)| (peer.eta(bytes, mean_chunk, usual_rate), *node))
                .min_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
            if let Some((eta, node)) = second
                && due > ENDGAME * eta + ENDGAME_SLACK
            {
                self.ask(now, node, chunk, plan);
            }
        }
    }

    /// Sees to it that somebody looks when the next chunk is overdue, or the next rest is over.
    fn set_alarms(&self, now: Time, plan: &mut Plan) {
        let timeout = self.timeout();
        for peer in self.peers.values() {
            if peer.rests_until > now {
                wake(plan, Some(peer.rests_until));
                continue;
            }
            let oldest = peer.asked.front().map(|ask| ask.at);
            let oldest = oldest.or((peer.any > 0).then_some(peer.any_at));
            wake(plan, oldest.map(|at| peer.deadline(at, timeout)));
        }
        if !self.asked.is_empty() && self.unasked() == 0 {
            wake(plan, Some(now.after(Duration::from_millis(50))));
        }
    }
}

fn wake(plan: &mut Plan, at: Option<Time>) {
    plan.wake_at = plan.wake_at.into_iter().chain(at).min();
}

/// Scatters chunks, for each salt another way.
pub(super) fn mix(salt: u64, chunk: u32) -> u64 {
    let mut z = salt ^ u64::from(chunk).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
