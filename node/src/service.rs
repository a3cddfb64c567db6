//! What this node answers to its peers.
//!
//! Who speaks is known from the connection. Whether it may is looked up in the roster, after the handshake
//! and again for every request, so a removal takes hold with the entry that says so.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use mesh_consensus::admission::{Admission, vouch};
use mesh_consensus::command::Batch;
use mesh_consensus::id::{JobId, NodeId};
use mesh_consensus::message::Body;
use mesh_transport::codec::{decode, encode};
use mesh_transport::net::{Net, Service, Stream, Welcome};
use tokio::sync::{RwLock, oneshot};

use crate::awareness::hub::Hub;
use crate::awareness::view::Judged;
use crate::clock;
use crate::data::Data;
use crate::dir::Dir;
use crate::engine::{Order, Orders, Place, Shown};
use crate::follow;
use crate::handle::{Part, Whoami, look_at};
use crate::join::Sponsor;
use crate::party::{PartySecret, SealingSecret};
use crate::training::Training;
use crate::wire::{Header, Hello, Note, Reply, Request};
use crate::work::{Key, Work};

/// A node that has heard no voter for this long serves no other party.
pub const STALE: Duration = Duration::from_secs(30);
/// For so long after it last followed a leader of its own configuration, a node hears no other. A voter
/// that slept through changes has then been without one for longer.
pub const LEADERLESS: Duration = Duration::from_secs(5);
/// Peers that are heard because somebody vouched for them. A mesh has few that are behind on its changes.
const MAX_VOUCHED: usize = 256;
/// What one who sits nowhere may say at once: it has no snapshot or entries to send.
const SMALL_MESSAGE: usize = 64 << 10;
/// Lines of a log that are sent at most.
const MAX_LINES: u32 = 10_000;

type Answer<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// What this node answers to its peers.
pub struct Peers {
    /// Who it is.
    pub whoami: Whoami,
    /// The proof of its admission.
    pub chain: Vec<Admission>,
    /// What the engine shows.
    pub shown: Shown,
    /// Where orders go.
    pub orders: Orders,
    /// What members say about themselves.
    pub hub: Arc<Hub>,
    /// The party's secret, if this node has it.
    pub secret: Arc<RwLock<Option<PartySecret>>>,
    /// The party's sealing secret, if this node has it.
    pub sealing: Arc<RwLock<Option<SealingSecret>>>,
    /// Lets newcomers in.
    pub sponsor: Arc<Sponsor>,
    /// For its log.
    pub dir: Dir,
    /// Its datasets.
    pub data: Data,
    /// What runs here.
    pub work: Work,
    /// Its part in trainings.
    pub training: Training,
}

impl Peers {
    /// What a member may, by the roster alone.
    fn judge(&self, from: NodeId) -> Welcome {
        let roster = self.shown.roster.borrow();
        if roster.removed.contains(&from) {
            return Welcome::No;
        }
        let Some(place) = roster.members.get(&from) else {
            // Before it has a state, a newcomer hears those of whom it was told.
            return match roster.introduced.contains(&from) && roster.index == 0 {
                true => Welcome::Full,
                false => Welcome::No,
            };
        };
        if place.leaving {
            return Welcome::RaftOnly;
        }
        let own = roster.party_of(self.whoami.node) == Some(place.party);
        let fresh = self.shown.pulse.borrow().fresh;
        let stale = fresh.is_none_or(|at| at.elapsed() > STALE);
        if stale && !own { Welcome::RaftOnly } else { Welcome::Full }
    }

    /// Whether the chain leads to a member that we know.
    fn vouched(&self, from: NodeId, chain: &[Admission]) -> bool {
        let roster = self.shown.roster.borrow();
        let known = |id| roster.members.contains_key(&id) || roster.introduced.contains(&id);
        let gone = |id| roster.removed.contains(&id);
        let Whoami { mesh, epoch, .. } = self.whoami;
        vouch(mesh, epoch, chain, known, gone).is_ok_and(|(node, _)| node == from)
    }

    /// Whether `from` may lead us, or ask for our vote.
    ///
    /// Any member might, as far as raft knows: the configuration may have changed while we slept. But a
    /// configuration that we know and whose leader we follow has not. So a member without a seat, or somebody for
    /// whom it vouched, cannot depose a leader or stop a voter.
    fn may_lead(&self, from: NodeId) -> bool {
        let roster = self.shown.roster.borrow();
        roster.index == 0
            || roster.seated.contains(&from)
            || self.shown.pulse.borrow().settled.elapsed() > LEADERLESS
    }

    /// Remembers who vouched for `from`, unless too many are remembered.
    fn remember(&self, from: NodeId, chain: &[Admission]) -> bool {
        let roster = self.shown.roster.borrow().clone();
        let mut vouched = self.shown.vouched.lock().unwrap_or_else(|held| held.into_inner());
        if vouched.len() >= MAX_VOUCHED {
            vouched.retain(|node, by| {
                let removed = by.iter().any(|one| roster.removed.contains(one));
                !removed && !roster.members.contains_key(node) && !roster.removed.contains(node)
            });
        }
        let has_room = vouched.len() < MAX_VOUCHED || vouched.contains_key(&from);
        if has_room {
            // The chain counts as far as the first member that we know.
            let mut by = Vec::new();
            for link in chain {
                by.push(link.by);
                if roster.members.contains_key(&link.by) {
                    break;
                }
            }
            vouched.insert(from, by);
        }
        has_room
    }

    async fn answer(&self, from: NodeId, request: Request) -> Reply {
        match request {
            Request::Submit(bytes) => match Batch::parse(&bytes) {
                // Only its own: nobody is a relay for somebody else's batches.
                Ok(batch) if batch.author() == from => {
                    match self.orders.give(Order::Submit { batch, reply: None }) {
                        Ok(()) => Reply::Taken,
                        Err(_) => Reply::NotNow,
                    }
                }
                _ => Reply::Refused,
            },
            Request::ReadIndex => {
                let (reply, answer) = oneshot::channel();
                if self.orders.give(Order::Read(reply)).is_err() {
                    return Reply::NotNow;
                }
                match answer.await {
                    Ok(Some(index)) => Reply::Index(index),
                    _ => Reply::NotNow,
                }
            }
            Request::Records { known, mine } => {
                for one in mine.iter().take(2) {
                    if self.hub.take_relayed(one) == Judged::Bad {
                        break;
                    }
                }
                Reply::Records(self.hub.newer_than(&known))
            }
            Request::Ping => Reply::Taken,
            Request::Training(ask) => Reply::Training(self.training.answer(from, ask).await),
            Request::PartySecret => self.hand_over(from).await,
            Request::SealingSecret => self.hand_over_sealing(from).await,
            Request::Log { lines } => {
                let roster = self.shown.roster.borrow().clone();
                let own = roster.party_of(self.whoami.node);
                if own.is_none() || roster.party_of(from) != own {
                    return Reply::Refused;
                }
                Reply::Log(crate::logs::tail(&self.dir.log_file(), lines.min(MAX_LINES)).await)
            }
        }
    }

    /// What a job does is for its own party's nodes to see. For others there is no such job.
    async fn may_ask_of_job(&self, from: NodeId, job: JobId) -> bool {
        let Some(party) = self.shown.roster.borrow().party_of(from) else { return false };
        let look = look_at(&self.orders, move |see| {
            see.replica.machine().job(job).is_some_and(|job| job.party == party)
        });
        look.await.unwrap_or(false)
    }

    /// The party's secret goes to nodes of the party that are not workers, and to nobody else.
    async fn hand_over(&self, to: NodeId) -> Reply {
        let roster = self.shown.roster.borrow().clone();
        let Some(place) = roster.members.get(&to) else { return Reply::Refused };
        let secret = self.secret.read().await;
        match &*secret {
            Some(secret) if place.party == secret.id() && !place.worker && !place.leaving => {
                Reply::Secret(*secret.bytes())
            }
            _ => Reply::Refused,
        }
    }
}

impl Peers {
    /// The party's sealing secret goes to nodes of the party, workers too, and to nobody else.
    async fn hand_over_sealing(&self, to: NodeId) -> Reply {
        let roster = self.shown.roster.borrow().clone();
        let own = roster.party_of(self.whoami.node);
        let belongs = |place: &Place| Some(place.party) == own && !place.leaving;
        if !roster.members.get(&to).is_some_and(belongs) {
            return Reply::Refused;
        }
        match &*self.sealing.read().await {
            Some(secret) => Reply::SealingSecret(*secret.bytes()),
            None => Reply::Refused,
        }
    }
}

impl Service for Peers {
    fn hello(&self) -> Vec<u8> {
        let Whoami { mesh, epoch, .. } = self.whoami;
        encode(&Hello { mesh, epoch, chain: self.chain.clone() }).unwrap_or_default()
    }

    fn welcome(&self, from: NodeId, hello: &[u8]) -> Welcome {
        let Ok(Hello { mesh, epoch, chain }) = decode::<Hello>(hello) else { return Welcome::No };
        if (mesh, epoch) != (self.whoami.mesh, self.whoami.epoch) {
            return Welcome::No;
        }
        match self.judge(from) {
            Welcome::No if self.vouched(from, &chain) && self.remember(from, &chain) => {
                // It is heard as a raft peer, and for nothing else, until the state knows it.
                let _ = self.orders.give(Order::Introduced(chain));
                Welcome::RaftOnly
            }
            other => other,
        }
    }

    fn still(&self, from: NodeId) -> Welcome {
        match self.judge(from) {
            Welcome::No => {
                let roster = self.shown.roster.borrow().clone();
                let vouched = self.shown.vouched.lock().unwrap_or_else(|held| held.into_inner());
                // Whoever vouched may have been removed since: its word goes with it.
                let removed = |node: &NodeId| roster.removed.contains(node);
                match vouched.get(&from) {
                    Some(by) if !removed(&from) && !by.iter().any(removed) => Welcome::RaftOnly,
                    _ => Welcome::No,
                }
            }
            other => other,
        }
    }

    fn on_message(&self, from: NodeId, message: Vec<u8>) {
        match decode::<Note>(&message) {
            Ok(Note::Raft(message)) => {
                let leads = matches!(
                    message.body,
                    Body::Append { .. }
                        | Body::Vote { .. }
                        | Body::Heartbeat { .. }
                        | Body::Snapshot(_)
                        | Body::TimeoutNow
                );
                if leads && !self.may_lead(from) {
                    let what = message.body.name();
                    tracing::debug!(from = %from.short(), what, "it has no seat, and there is a leader");
                    return;
                }
                // A full engine loses it, as a network would.
                let _ = self.orders.give(Order::Raft { from, message });
            }
            Ok(Note::Bookmark(mark)) => {
                let is_voter = self.shown.roster.borrow().signers().contains(&mark.by);
                let Whoami { mesh, epoch, .. } = self.whoami;
                if is_voter && mark.by == from && mark.verify(mesh, epoch).is_ok() {
                    self.shown.post(mark, clock::steady());
                }
            }
            Err(error) => tracing::debug!(from = %from.short(), %error, "an unreadable message"),
        }
    }

    fn on_call(&self, from: NodeId, request: Vec<u8>) -> Answer<'_, Vec<u8>> {
        Box::pin(async move {
            let reply = match decode::<Request>(&request) {
                Ok(request) => self.answer(from, request).await,
                Err(_) => Reply::Refused,
            };
            encode(&reply).unwrap_or_default()
        })
    }

    fn largest_message(&self, from: NodeId) -> usize {
        // One without a seat of its own gets the log by a feed, and large messages from those who sit alone.
        let part = self.shown.pulse.borrow().part;
        let sits = matches!(part, Part::Voter | Part::Learner | Part::Joining);
        let known = self.shown.roster.borrow().seated.contains(&from);
        if known || (sits && self.may_lead(from)) { usize::MAX } else { SMALL_MESSAGE }
    }

    fn on_stream(&self, from: NodeId, header: Vec<u8>, stream: Stream) -> Answer<'_, ()> {
        Box::pin(async move {
            match decode::<Header>(&header) {
                Ok(Header::Watch { index }) => {
                    let may = || self.judge(from) == Welcome::Full;
                    let (shown, orders) = (self.shown.clone(), self.orders.clone());
                    follow::serve(shown, orders, index, stream, follow::UNREAD, may).await;
                }
                Ok(Header::Manifest { version }) => {
                    self.data.serve_manifest(from, version, stream).await
                }
                Ok(Header::Swarm { version, link }) => {
                    let may = || self.judge(from) == Welcome::Full;
                    self.data.serve_swarm(from, version, link, stream, &may).await;
                }
                Ok(Header::Strip { link, number }) => {
                    self.data.take_strip((from, link), number, stream);
                }
                Ok(Header::Task { job, task, fence, ask }) => {
                    if self.may_ask_of_job(from, job).await {
                        self.work.serve(Key { job, task, fence }, ask, stream).await;
                    }
                }
                Ok(Header::Update(head)) => self.training.take_update(from, *head, stream).await,
                Ok(Header::Piece { job, piece }) => {
                    self.training.serve_piece(from, job, piece, stream).await;
                }
                Ok(Header::Push(head)) => self.training.take_push(from, *head, stream).await,
                Ok(Header::Pull(head)) => self.training.serve_pull(from, *head, stream).await,
                Ok(Header::Replica(head)) => self.training.take_replica(from, head, stream).await,
                Err(_) => {}
            }
        })
    }

    fn on_join(&self, from: NodeId, request: Vec<u8>) -> Answer<'_, Vec<u8>> {
        Box::pin(async move {
            let reply = self.sponsor.answer(from, &request).await;
            encode(&reply).unwrap_or_default()
        })
    }
}

/// Cuts off whoever is removed, and keeps the connections that are needed, as the roster changes.
pub async fn mind_connections(whoami: Whoami, shown: Shown, net: Net) {
    let mut roster = shown.roster.clone();
    let mut gone = std::collections::BTreeSet::new();
    loop {
        let now = roster.borrow_and_update().clone();
        for node in now.removed.difference(&gone) {
            net.close(*node, "removed from the mesh");
        }
        if now.removed != gone {
            // With those who vouched go those for whom they did.
            let mut vouched = shown.vouched.lock().unwrap_or_else(|held| held.into_inner());
            vouched.retain(|node, by| {
                let stays = !by.iter().any(|one| now.removed.contains(one));
                if !stays {
                    net.close(*node, "whoever vouched for it was removed");
                }
                stays
            });
        }
        gone = now.removed.clone();
        let own = now.seated.contains(&whoami.node);
        // Those at the table keep in touch; whoever watches opens what it needs.
        let keep = if own { now.seated.clone() } else { std::collections::BTreeSet::new() };
        net.keep(keep.into_iter().filter(|node| *node != whoami.node).collect());
        if roster.changed().await.is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests;
