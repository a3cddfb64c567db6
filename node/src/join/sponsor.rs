//! The member's side of a join.

use std::sync::Arc;
use std::time::Duration;

use mesh_consensus::admission::{Admission, MAX_CHAIN};
use mesh_consensus::command::Batch;
use mesh_consensus::id::{NodeId, PartyId, RaftId};
use mesh_consensus::machine::{At, Outcome, StateMachine as _};
use mesh_transport::codec::decode;
use mesh_transport::identity::NodeKey;
use tokio::sync::{RwLock, oneshot};

use crate::awareness::hub::Hub;
use crate::clock;
use crate::engine::{Order, Orders};
use crate::handle::{Ask, Part, Whoami, WriteError, Writer, Written, look_at};
use crate::party::PartySecret;
use crate::state::command::{Act, Admit, Found};
use crate::state::decided::Decision;
use crate::state::refusal::Refusal;
use crate::state::request::{JointAct, RequestId};
use crate::wire::{JoinReply, JoinRequest, Welcome};

/// A newcomer's clock may differ from ours by this much.
const MAX_SKEW: Duration = Duration::from_secs(600);
/// A ticket that was made a moment ago may not have got here yet: it is looked for again, so often …
const LOOKS: u32 = 20;
/// … and after this time each.
const LOOK_AGAIN: Duration = Duration::from_millis(50);
/// How long a rejoin may take.
const PATIENCE: Duration = Duration::from_secs(8);

/// Lets newcomers in, in the name of this node.
pub struct Sponsor {
    /// Who it is.
    pub whoami: Whoami,
    /// Its key, to sign admissions.
    pub key: NodeKey,
    /// The proof of its own admission.
    pub chain: Vec<Admission>,
    /// Writes.
    pub writer: Writer,
    /// Looks.
    pub orders: Orders,
    /// Records for newcomers.
    pub hub: Arc<Hub>,
    /// The party's secret, for newcomers of the same party.
    pub secret: Arc<RwLock<Option<PartySecret>>>,
}

impl Sponsor {
    /// Answers a newcomer that proved to be `from`.
    pub async fn answer(&self, from: NodeId, request: &[u8]) -> JoinReply {
        match decode::<JoinRequest>(request) {
            Err(_) => refused("the request cannot be read: is it from another version of mesh?"),
            Ok(JoinRequest::Join { ticket, name, proof, consent, clock }) => {
                let now = clock::now();
                let skew = now.since(clock).max(clock.since(now));
                if skew > MAX_SKEW {
                    return refused(&format!(
                        "the newcomer's clock says {}, that of the member that it met {}: {} s apart",
                        clock::date(clock),
                        clock::date(now),
                        skew.as_secs()
                    ));
                }
                self.admit(Admit { ticket, node: from, name, proof, consent }).await
            }
            Ok(JoinRequest::Found { invite, name, signing, sealing, ticket, proof, consent }) => {
                let act = Found { invite, name, signing, sealing, ticket, proof, consent };
                self.found(act).await
            }
            Ok(JoinRequest::Decided { request, signing }) => {
                match self.becomes(signing, request).await {
                    Some(Fate::Founded) => JoinReply::Founded,
                    Some(Fate::Waits(request)) => JoinReply::Waits { request },
                    Some(Fate::Over(how)) => {
                        let how = how.map_or("is over".into(), |how| format!("was {}", how.name()));
                        refused(&format!("the request to the other parties {how}"))
                    }
                    None => JoinReply::NoLeader,
                }
            }
            Ok(JoinRequest::Rejoin { batch }) => self.rejoin(from, &batch).await,
            Ok(JoinRequest::Where) => {
                let epoch = self.whoami.epoch;
                match look_at(&self.orders, move |see| see.replica.top(from)).await {
                    Ok(top) => JoinReply::Here { epoch, top },
                    Err(_) => JoinReply::NoLeader,
                }
            }
        }
    }

    async fn admit(&self, act: Admit) -> JoinReply {
        let node = act.node;
        match self.write(Act::Admit(act)).await {
            // A member that asks again has lost our answer.
            Ok(_) | Err(WriteError::Refused { refusal: Refusal::AlreadyMember, .. }) => {
                self.welcome(node).await
            }
            Err(error) => told(error),
        }
    }

    /// Writes what a stranger asks for. What this node can refuse by itself costs nobody a place in the log,
    /// so a stranger without a ticket writes nothing.
    async fn write(&self, act: Act) -> Result<Written, WriteError> {
        for look in 1.. {
            match self.foresee(act.clone()).await? {
                Ok(()) => break,
                Err(Refusal::NoSuchTicket | Refusal::NameTaken) if look < LOOKS => {
                    tokio::time::sleep(LOOK_AGAIN).await;
                }
                Err(refusal) => return Err(WriteError::Refused { position: 0, refusal }),
            }
        }
        self.writer.write(vec![Ask { act, signed: false }]).await
    }

    async fn foresee(&self, act: Act) -> Result<Result<(), Refusal>, WriteError> {
        let Whoami { mesh, epoch, node, .. } = self.whoami;
        let seen = look_at(&self.orders, move |see| {
            let (index, time) = (see.replica.index() + 1, see.replica.time());
            let at = At { mesh, epoch, index, time, author: node, sequence: 0, position: 0 };
            see.replica.machine().foresee(&at, &act)
        });
        seen.await.map_err(|_| WriteError::Busy)
    }

    async fn found(&self, act: Found) -> JoinReply {
        let signing = act.signing;
        let written = self.write(Act::Found(act)).await;
        // Whoever asks again has lost our answer: its invite may be used up by its own request, and whoever
        // invited it may have gone since.
        let asked = match &written {
            Ok(_) => true,
            Err(WriteError::Refused { refusal, .. }) => matches!(
                refusal,
                Refusal::AlreadyAsked
                    | Refusal::PartyTaken
                    | Refusal::TicketUsedUp
                    | Refusal::TicketExpired
                    | Refusal::PartyAbsent
            ),
            Err(_) => false,
        };
        let fate = if asked { self.becomes(signing, 0).await } else { None };
        match (fate, written) {
            (Some(Fate::Founded), _) => JoinReply::Founded,
            (Some(Fate::Waits(request)), _) => JoinReply::Waits { request },
            (_, Err(error)) => told(error),
            (_, Ok(_)) => JoinReply::NoLeader,
        }
    }

    /// What becomes of a party that asked to be founded; `None` if this node has not come to
    /// `request` yet.
    async fn becomes(&self, signing: PartyId, request: u64) -> Option<Fate> {
        let seen = look_at(&self.orders, move |see| {
            let state = see.replica.machine();
            if see.replica.index() < RequestId(request).index() {
                return None;
            }
            if state.parties().contains_key(&signing) {
                return Some(Fate::Founded);
            }
            let now = see.replica.time();
            let waits = state.requests().iter().find(|(_, request)| {
                let same = matches!(&request.act, JointAct::FoundParty { signing: s, .. } if *s == signing);
                same && request.expires > now
            });
            let over = || {
                let one = state.decided().iter().find(|one| one.id == RequestId(request));
                Fate::Over(one.map(|one| one.decision))
            };
            Some(waits.map_or_else(over, |(id, _)| Fate::Waits(id.0)))
        });
        seen.await.ok().flatten()
    }

    async fn rejoin(&self, from: NodeId, bytes: &[u8]) -> JoinReply {
        let Ok(batch) = Batch::parse(bytes) else { return refused("the batch cannot be read") };
        let only_rejoin = matches!(
            batch.commands(),
            [command] if matches!(Act::decode(command), Some((Act::Rejoin(_), None)))
        );
        if batch.author() != from || !only_rejoin {
            return refused("only the node itself takes its new seat");
        }
        // A stranger's batch would count for nothing, and still take up a place in the log. And whoever only
        // watches cannot hand it in: the newcomer asks the next.
        let seen = look_at(&self.orders, move |see| {
            (see.replica.machine().is_member(from), see.pulse.part)
        });
        match seen.await {
            Ok((true, Part::Voter | Part::Learner)) => {}
            Ok((false, _)) => {
                let refusal = Refusal::NotMember;
                return told(WriteError::Refused { position: 0, refusal });
            }
            _ => return JoinReply::NoLeader,
        }
        let (reply, answer) = oneshot::channel();
        if self.orders.give(Order::Submit { batch, reply: Some(reply) }).is_err() {
            return JoinReply::NoLeader;
        }
        match tokio::time::timeout(PATIENCE, answer).await {
            Ok(Ok(Ok(receipt))) => match receipt.outcome(0) {
                Outcome::Done => self.welcome(from).await,
                Outcome::Refused(code) => told(match Refusal::from_code(code) {
                    Some(refusal) => WriteError::Refused { position: 0, refusal },
                    None => WriteError::Unknown(code),
                }),
            },
            Ok(Ok(Err(rejected))) => refused(&rejected.to_string()),
            _ => JoinReply::NoLeader,
        }
    }

    /// What the newcomer needs, now that this node has applied its admission.
    async fn welcome(&self, node: NodeId) -> JoinReply {
        let seen = look_at(&self.orders, move |see| {
            let state = see.replica.machine();
            let member = state.members().get(&node).filter(|member| !member.leaving)?;
            let introduced: Vec<(NodeId, RaftId)> = (state.members().iter())
                .filter_map(|(id, member)| Some((*id, member.seat?)))
                .collect();
            let voters = &see.replica.config().voters;
            let voters: Vec<NodeId> = voters.iter().filter_map(|s| state.node_at(*s)).collect();
            let founding = state.founding()?.clone();
            Some((member.seat?, member.party, member.worker, founding, introduced, voters))
        });
        let Ok(Some((seat, party, worker, founding, introduced, voters))) = seen.await else {
            return refused("the node is not a member, or is leaving");
        };
        let Whoami { mesh, epoch, .. } = self.whoami;
        let mut chain = vec![Admission::sign(self.key.signing(), mesh, epoch, node, seat)];
        chain.extend(self.chain.iter().cloned());
        chain.truncate(MAX_CHAIN);
        let secret = self.secret.read().await;
        let secret = secret.as_ref().filter(|secret| !worker && secret.id() == party);
        let secret = secret.map(|secret| *secret.bytes());
        let (records, here) = (self.hub.all(), self.hub.here());
        JoinReply::Welcome(Box::new(Welcome {
            epoch,
            seat,
            party,
            worker,
            founding,
            chain,
            introduced,
            voters,
            records,
            here,
            secret,
        }))
    }
}

/// What becomes of a party that asked to be founded.
enum Fate {
    Founded,
    Waits(u64),
    /// And how it ended, if that is known.
    Over(Option<Decision>),
}

fn refused(why: &str) -> JoinReply {
    JoinReply::Refused { code: None, why: why.to_owned() }
}

fn told(error: WriteError) -> JoinReply {
    match error {
        WriteError::Refused { refusal, .. } => {
            JoinReply::Refused { code: Some(refusal.code()), why: refusal.to_string() }
        }
        // The newcomer asks the next, and learns why this one was of no use.
        WriteError::Removed { .. } => {
            let code = Some(Refusal::NotMember.code());
            JoinReply::Refused { code, why: "it was itself removed from the mesh".into() }
        }
        // Also of this one.
        WriteError::NoAnswer(_) | WriteError::Busy | WriteError::Disk(_) | WriteError::Stopping => {
            JoinReply::NoLeader
        }
        other => refused(&other.to_string()),
    }
}
