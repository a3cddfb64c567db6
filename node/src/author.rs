//! This node's own batches: gathered, numbered, signed, and sent until they are answered.
//!
//! ```text
//!  writes ─► gather what waits ─► number and sign ─► engine, or a seated node ─► answer
//!                 ▲                                          │ no answer
//!                 └─ until the batch before is answered      └─► the same bytes again
//! ```
//!
//! Checking a signature costs 45 µs on every node, so what comes in while a batch is on its way goes
//! out together in the next one. A batch keeps its number and its bytes however often it is sent, and
//! counts once. Numbers are reserved on disk in blocks before they are used, so no restart uses one again.

pub mod numbers;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use mesh_consensus::command::{Batch, Command};
use mesh_consensus::machine::Outcome;
use mesh_transport::identity::NodeKey;
use mesh_transport::net::Net;
use tokio::sync::{RwLock, Semaphore, mpsc, oneshot};
use tokio::time::Instant;

use crate::dir::DirError;
use crate::engine::{Answered, Order, Orders, Shown};
use crate::favourite::Favourite;
use crate::handle::{Ask, Part, Pulse, Whoami, WriteError, look_at};
use crate::party::PartySecret;
use crate::run::vital;
use crate::state::command::Act;
use crate::state::party::Slot;
use crate::state::refusal::Refusal;
use crate::wire::{Reply, Request};
use numbers::{Flight, Flights, Sequence};

/// Writes that may wait to be gathered; more wait at the door.
pub const MAX_WRITES: usize = 1024;
/// The next batch leaves when the one before it is answered, or after this time if that takes longer: what
/// comes in meanwhile gathers, and a slow wire holds up nobody.
const GATHER: Duration = Duration::from_millis(10);
/// Batches on their way at a time.
const IN_FLIGHT: usize = 32;
/// Commands in a batch.
const MAX_GATHERED: usize = 512;
/// A batch that is not answered is sent again after so many of raft's ticks (300 ms on a LAN), and as soon as
/// there is another leader. Sooner would only add to what a slow wire has to carry.
const AGAIN_TICKS: u32 = 6;
/// How long a writer waits.
pub const PATIENCE: Duration = Duration::from_secs(10);
/// Between two tries to reserve numbers on a disk that has no room.
const NO_ROOM: Duration = Duration::from_secs(1);
/// How long a server may take to say that it has a batch. Then the next one is tried.
const TRY: Duration = Duration::from_millis(700);
/// Between a server that did not take a batch and the next.
const NEXT_SERVER: Duration = Duration::from_millis(20);

/// What a writer hands in.
pub struct Write {
    /// What to write: all of it in one batch.
    pub asks: Vec<Ask>,
    /// Where the answer goes: the receipt of the batch, and the position of the first command in it.
    pub reply: oneshot::Sender<Result<(mesh_consensus::replica::Receipt, u32), WriteError>>,
}

/// Where batches are made.
pub struct Author {
    /// Whose they are.
    pub whoami: Whoami,
    /// The node's key.
    pub key: NodeKey,
    /// The party's secret, if this node has it.
    pub secret: Arc<RwLock<Option<PartySecret>>>,
    /// Where batches go.
    pub orders: Orders,
    /// What the engine shows.
    pub shown: Shown,
    /// The way to a seated node, for one that has no seat.
    pub net: Net,
    /// The seated node that answered last.
    pub favourite: Arc<Favourite>,
}

/// A batch that was made: its bytes, and whose commands stand where.
struct Made {
    batch: Batch,
    writers: Vec<(u32, u32, oneshot::Sender<WriteResult>)>,
}

type WriteResult = Result<(mesh_consensus::replica::Receipt, u32), WriteError>;

impl Author {
    /// Runs until every writer has gone.
    pub async fn run(self, mut sequence: Sequence, mut writes: mpsc::Receiver<Write>) {
        let slots = Arc::new(Semaphore::new(IN_FLIGHT));
        let this = Arc::new(self);
        let mut held: VecDeque<Write> = VecDeque::new();
        let mut flights = Flights::default();
        loop {
            if held.is_empty() {
                let Some(write) = writes.recv().await else { return };
                held.push_back(write);
            }
            if !sequence.has_begun() && !this.begin(&mut sequence).await {
                for Write { reply, .. } in held.drain(..) {
                    let _ = reply.send(Err(WriteError::NoAnswer(PATIENCE)));
                }
                continue;
            }
            let Ok(slot) = slots.clone().acquire_owned().await else { return };
            flights.gather(GATHER).await;
            flights.make_room(sequence.next()).await;
            while held.len() < MAX_GATHERED
                && let Ok(write) = writes.try_recv()
            {
                held.push_back(write);
            }
            let made = match this.make(&mut sequence, &mut held).await {
                Ok(made) => made,
                Err(error) => {
                    // A full disk: no number can be reserved. Nothing was sent, and whoever asked is told why.
                    tracing::warn!(
                        error = &error as &dyn std::error::Error,
                        "no batch can be made"
                    );
                    drop(slot);
                    let why = crate::data::chain(&error);
                    for Write { reply, .. } in held.drain(..) {
                        let _ = reply.send(Err(WriteError::Disk(why.clone())));
                    }
                    tokio::time::sleep(NO_ROOM).await;
                    continue;
                }
            };
            if let Some(made) = made {
                let (this, number) = (this.clone(), made.batch.sequence());
                let task = tokio::spawn(vital("a batch", async move {
                    this.deliver(made).await;
                    drop(slot);
                }));
                flights.add(Flight { number, left: Instant::now(), task });
            }
        }
    }

    /// Begins to number, once this node knows itself to be up to date. `false` if it does not in time.
    async fn begin(&self, sequence: &mut Sequence) -> bool {
        let me = self.whoami.node;
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline {
            let is_fresh = self.shown.pulse.borrow().fresh.is_some();
            if is_fresh && let Ok(top) = look_at(&self.orders, move |see| see.replica.top(me)).await
            {
                sequence.begin(top);
                return true;
            }
            tokio::time::sleep(NEXT_SERVER).await;
        }
        false
    }

    /// Makes one batch of what is held: as many writes as fit, and only one that gives a seat.
    async fn make(
        &self,
        sequence: &mut Sequence,
        held: &mut VecDeque<Write>,
    ) -> Result<Option<Made>, DirError> {
        // Deriving the key costs as much as a signature, so it is done once, and only if somebody needs it.
        let key = match held.iter().any(|write| write.asks.iter().any(|ask| ask.signed)) {
            true => self.secret.read().await.as_ref().map(PartySecret::signing),
            false => None,
        };
        let number = sequence.take()?;
        let Whoami { mesh, epoch, node, .. } = self.whoami;
        let mut commands: Vec<Command> = Vec::new();
        let mut writers = Vec::new();
        let mut seats = 0;
        while let Some(write) = held.front() {
            let more_seats = write.asks.iter().filter(|ask| gives_seat(&ask.act)).count();
            let fits = commands.len() + write.asks.len() <= MAX_GATHERED;
            if !commands.is_empty() && (!fits || (seats > 0 && more_seats > 0)) {
                break;
            }
            let Some(Write { asks, reply }) = held.pop_front() else { break };
            if reply.is_closed() {
                continue;
            }
            if asks.iter().any(|ask| ask.signed) && key.is_none() {
                let _ = reply.send(Err(WriteError::NoPartyKey));
                continue;
            }
            seats += more_seats;
            let first = position(commands.len());
            for ask in asks {
                let slot = Slot {
                    mesh,
                    epoch,
                    author: node,
                    sequence: number,
                    position: position(commands.len()),
                };
                commands.push(match &key {
                    Some(key) if ask.signed => ask.act.signed(key, &slot),
                    _ => ask.act.command(),
                });
            }
            writers.push((first, position(commands.len()), reply));
        }
        if commands.is_empty() {
            return Ok(None);
        }
        match Batch::sign(self.key.signing(), mesh, epoch, number, &commands) {
            Ok(batch) => Ok(Some(Made { batch, writers })),
            Err(error) => {
                for (_, _, reply) in writers {
                    let _ = reply.send(Err(WriteError::Rejected(error.clone().into())));
                }
                Ok(None)
            }
        }
    }

    /// Sends a batch until it is answered or its writers have lost patience.
    async fn deliver(&self, made: Made) {
        let Made { batch, writers } = made;
        let answered = self.send(&batch).await;
        for (first, end, reply) in writers {
            let result = match &answered {
                Some(Ok(receipt)) => {
                    let refused = (first..end).find_map(|at| match receipt.outcome(at) {
                        Outcome::Refused(code) => Some((at - first, code)),
                        Outcome::Done => None,
                    });
                    match refused {
                        None => Ok((receipt.clone(), first)),
                        Some((position, code)) => Err(match Refusal::from_code(code) {
                            Some(refusal) => WriteError::Refused { position, refusal },
                            None => WriteError::Unknown(code),
                        }),
                    }
                }
                Some(Err(rejected)) => Err(WriteError::Rejected(rejected.clone())),
                None => Err(WriteError::NoAnswer(PATIENCE)),
            };
            // A writer that has gone does not want to know.
            let _ = reply.send(result);
        }
    }

    async fn send(&self, batch: &Batch) -> Option<Answered> {
        let deadline = Instant::now() + PATIENCE;
        let mut pulse = self.shown.pulse.clone();
        let (reply, mut answer) = oneshot::channel();
        let mut reply = Some(reply);
        let mut tries = 0usize;
        while Instant::now() < deadline {
            let Pulse { part, term, leader, tick, .. } = pulse.borrow_and_update().clone();
            let is_seated = part != Part::Watcher && part != Part::Joining;
            if is_seated {
                let order = Order::Submit { batch: batch.clone(), reply: reply.take() };
                // A full engine is asked again like a lost leader.
                let _ = self.orders.give(order);
            } else if let Some(reply) = reply.take() {
                let _ = self.orders.give(Order::Await { sequence: batch.sequence(), reply });
            }
            let led_anew = async {
                let other = |now: &Pulse| {
                    now.leader.is_some() && (now.leader, now.term, now.part) != (leader, term, part)
                };
                pulse.wait_for(other).await.is_ok()
            };
            let waited = async {
                let taken = is_seated || self.pass_on(batch, tries).await;
                let again = if taken { tick * AGAIN_TICKS } else { NEXT_SERVER };
                tokio::time::sleep(again).await;
            };
            // The answer comes with the log, and may be here before the word of the server that took the batch.
            let answered = tokio::select! {
                biased;
                answered = &mut answer => Some(answered),
                _ = led_anew => None,
                _ = tokio::time::timeout_at(deadline, waited) => None,
            };
            tries += 1;
            match answered {
                Some(Ok(answered)) => return Some(answered),
                // The engine let go of it: a new one must be told.
                Some(Err(_)) => {
                    let (again, from) = oneshot::channel();
                    (reply, answer) = (Some(again), from);
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                None => {}
            }
        }
        None
    }

    /// Hands the batch to a node that has a seat, another one at each try. Whether it was taken.
    async fn pass_on(&self, batch: &Batch, tries: usize) -> bool {
        let servers = crate::follow::servers(&self.shown, self.whoami.node);
        let Some(server) = self.favourite.pick(&servers, tries) else { return false };
        let Ok(request) =
            mesh_transport::codec::encode(&Request::Submit(batch.as_bytes().to_vec()))
        else {
            return false;
        };
        match self.net.call(server, request, TRY).await {
            Ok(bytes) => {
                let reply: Result<Reply, _> = mesh_transport::codec::decode(&bytes);
                tracing::trace!(server = %server.short(), ?reply, "a batch was passed on");
                let taken = matches!(reply, Ok(Reply::Taken));
                if taken {
                    self.favourite.answered(server);
                }
                taken
            }
            Err(error) => {
                tracing::debug!(server = %server.short(), %error, "a batch could not be passed on");
                false
            }
        }
    }
}

fn position(at: usize) -> u32 {
    u32::try_from(at).unwrap_or(u32::MAX)
}

/// An entry gives one seat at most.
fn gives_seat(act: &Act) -> bool {
    matches!(act, Act::Admit(_) | Act::Rejoin(_))
}
