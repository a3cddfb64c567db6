//! One link of a pull: a stream to a peer, over which chunks are asked for and come.
//!
//! What it hears it tells the pull as an [`Event`]; chunks are verified and written on the way, beside each other.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::future::try_join_all;
use mesh_consensus::id::{NodeId, VersionId};
use mesh_storage::bitmap::Bitmap;
use mesh_storage::store::{Fetch, StoreError, Wrote};
use mesh_transport::codec::{decode, encode};
use mesh_transport::net::{Lane, Net, ReceiveHalf};
use tokio::io::AsyncReadExt as _;
use tokio::sync::{Semaphore, mpsc};
use tokio::time::{sleep, timeout};

use super::wire::{Ask, Give, MAX_GIVE_BYTES, MAX_NAMED, MAX_OTHERS, MAX_STRIPS, cut};
use crate::clock;
use crate::wire::Header;

/// Chunks that are being verified and written at a time: enough for every core, and a bound on memory.
pub(super) const MAX_WRITES: usize = 8;
/// A link over which nothing comes for this long is dead.
const SILENT: Duration = Duration::from_secs(60);
/// How often it is said of a chunk on its way that it still comes.
const STILL_COMING: Duration = Duration::from_secs(1);

/// A wire whose round trip takes so long is long: what one connection may have under way, and what a loss costs it, then
/// bound its rate below what the wire carries.
const LONG_WIRE: Duration = Duration::from_millis(30);
/// A version below this is over before further connections stand.
const WORTH_STRIPS: u64 = 16 << 20;

/// Something that a link tells.
pub(super) enum Event {
    Map(NodeId, Bitmap),
    Have(NodeId, Vec<u32>),
    Written {
        node: NodeId,
        number: u32,
        bytes: u32,
        result: Result<Wrote, StoreError>,
    },
    Refused(NodeId, u32),
    Began(NodeId, u32),
    Nothing(NodeId),
    Others(Vec<NodeId>),
    /// The link of this number.
    Gone(NodeId, u64),
    /// What was written could not be made durable.
    Unsafe(StoreError),
}

/// A link to a peer; dropped, it closes.
pub(super) struct Link {
    /// Tells it from an earlier one with the same peer.
    pub(super) number: u64,
    pub(super) asks: mpsc::Sender<Ask>,
}

/// What every link of a pull is given.
#[derive(Clone)]
pub(super) struct Shared {
    pub(super) net: Net,
    pub(super) version: VersionId,
    pub(super) lengths: Arc<[u32]>,
    pub(super) fetch: Arc<Fetch>,
    pub(super) events: mpsc::Sender<Event>,
    pub(super) writes: Arc<Semaphore>,
    pub(super) bodies: Arc<Bodies>,
    /// Paces what should not take the whole wire.
    pub(super) pace: Arc<Pace>,
}

/// A link to a peer, from its first word to its last.
pub(super) async fn link_to(shared: Shared, node: NodeId, number: u64, asks: mpsc::Receiver<Ask>) {
    let why = speak(&shared, node, asks).await;
    tracing::debug!(peer = %node.short(), why, "a link has ended");
    // Whoever reads may have gone.
    let _ = shared.events.send(Event::Gone(node, number)).await;
}

async fn speak(shared: &Shared, node: NodeId, mut asks: mpsc::Receiver<Ask>) -> &'static str {
    let link: u64 = fastrand::u64(..);
    let Ok(header) = encode(&Header::Swarm { version: shared.version, link }) else {
        return "our header";
    };
    // From here on it may have much more under way.
    let _bulk = shared.net.bulk(node);
    let Ok(stream) = shared.net.open(node, header, Lane::Bulk).await else { return "unreachable" };
    let (mut send, receive) = stream.split();
    let write = async {
        while let Some(ask) = asks.recv().await {
            let Ok(bytes) = encode(&ask) else { return "our own words" };
            if send.send_frame(&bytes).await.is_err() {
                return "it takes no more asks";
            }
        }
        send.finish();
        "it is not needed any more"
    };
    let (widening, strips) = mpsc::channel(MAX_STRIPS);
    let widen = async {
        widen(shared, node, link, &widening).await;
        // Those that there are stay as long as the link.
        std::future::pending::<&'static str>().await
    };
    tokio::select! {
        why = write => why,
        why = listen(shared, node, receive, strips) => why,
        why = widen => why,
    }
}

/// Opens strips if the wire is long and much is to come.
async fn widen(shared: &Shared, node: NodeId, link: u64, strips: &mpsc::Sender<ReceiveHalf>) {
    let rtt = shared.net.links().iter().find(|link| link.node == node).map(|link| link.rtt);
    let bytes: u64 = shared.lengths.iter().map(|bytes| u64::from(*bytes)).sum();
    if rtt.is_none_or(|rtt| rtt < LONG_WIRE) || bytes < WORTH_STRIPS {
        return;
    }
    for number in 1..=MAX_STRIPS {
        let Ok(header) = encode(&Header::Strip { link, number: number as u8 }) else { return };
        match shared.net.open_beside(node, number - 1, header).await {
            Ok(stream) => {
                let (mut send, receive) = stream.split();
                send.finish();
                if strips.send(receive).await.is_err() {
                    return;
                }
            }
            Err(error) => {
                tracing::debug!(peer = %node.short(), number, %error, "no further strip");
                return;
            }
        }
    }
}

async fn listen(
    shared: &Shared,
    node: NodeId,
    mut receive: ReceiveHalf,
    mut widening: mpsc::Receiver<ReceiveHalf>,
) -> &'static str {
    let count = shared.lengths.len();
    let mut strips = Vec::new();
    loop {
        let frame = match timeout(SILENT, receive.recv_frame(MAX_GIVE_BYTES)).await {
            Ok(Ok(Some(bytes))) => bytes,
            Ok(_) => return "it has ended",
            Err(_) => return "it is silent",
        };
        let Ok(give) = decode::<Give>(&frame) else { return "it speaks nonsense" };
        let event = match give {
            Give::Map(bytes) => match Bitmap::from_bytes(count, &bytes) {
                Ok(map) => Event::Map(node, map),
                Err(_) => return "a map of another version",
            },
            Give::Have(chunks) if chunks.len() <= MAX_NAMED => Event::Have(node, chunks),
            Give::Others(nodes) if nodes.len() <= MAX_OTHERS => Event::Others(nodes),
            Give::Have(_) | Give::Others(_) => return "too many at once",
            Give::Refused(number) => Event::Refused(node, number),
            Give::Nothing => Event::Nothing(node),
            Give::Chunk { number, bytes, parts } => {
                let length = shared.lengths.get(number as usize).copied();
                if length != Some(bytes) {
                    return "a chunk of another length";
                }
                shared.pace.take(u64::from(bytes)).await;
                let began = || Event::Began(node, number);
                if shared.events.send(began()).await.is_err() {
                    return "the pull has ended";
                }
                let (length, parts) = (bytes as usize, usize::from(parts));
                while 1 + strips.len() < parts.min(1 + MAX_STRIPS) {
                    // We have opened it, or it could not know of it.
                    match timeout(SILENT, widening.recv()).await {
                        Ok(Some(strip)) => strips.push(strip),
                        _ => return "a strip that there is not",
                    }
                }
                if !(1..=1 + strips.len()).contains(&parts) {
                    return "more parts than strips";
                }
                let mut body = shared.bodies.take(length);
                // Told again a moment later if nobody has room to hear it.
                let still = || drop(shared.events.try_send(began()));
                let mut rest = &mut body[..length];
                let streams = std::iter::once(&mut receive).chain(&mut strips);
                let filling = streams.zip(cut(length, parts)).map(|(stream, part)| {
                    let (here, after) = std::mem::take(&mut rest).split_at_mut(part);
                    rest = after;
                    fill(stream, here, &still)
                });
                if try_join_all(filling).await.is_err() {
                    return "it ended inside a chunk";
                }
                let Ok(permit) = shared.writes.clone().acquire_owned().await else {
                    return "stopping";
                };
                let (fetch, events) = (shared.fetch.clone(), shared.events.clone());
                let bodies = shared.bodies.clone();
                tokio::task::spawn_blocking(move || {
                    let result = fetch.write(number as usize, &body[..length]);
                    bodies.give_back(body);
                    drop(permit);
                    // A pull that has ended does not look any more.
                    let _ = events.blocking_send(Event::Written { node, number, bytes, result });
                    // Others may have it before it is synced: what they get is verified anyway.
                    if let Err(error) = fetch.flush_if_due() {
                        let _ = events.blocking_send(Event::Unsafe(error));
                    }
                });
                continue;
            }
        };
        if shared.events.send(event).await.is_err() {
            return "the pull has ended";
        }
    }
}

/// Reads all of a part of a chunk, and says every now and then that it still comes.
async fn fill(stream: &mut ReceiveHalf, part: &mut [u8], still: &impl Fn()) -> Result<(), ()> {
    let (mut filled, mut told) = (0, clock::steady());
    while filled < part.len() {
        match timeout(SILENT, stream.read(&mut part[filled..])).await {
            Ok(Ok(read)) if read > 0 => filled += read,
            _ => return Err(()),
        }
        if told.elapsed() > STILL_COMING {
            told = clock::steady();
            still();
        }
    }
    Ok(())
}

/// Memory for chunks, used again and again: fresh memory would be zeroed by the kernel each time.
#[derive(Default)]
pub(super) struct Bodies(std::sync::Mutex<Vec<Vec<u8>>>);

impl Bodies {
    /// At least `length` bytes with anything in them.
    fn take(&self, length: usize) -> Vec<u8> {
        let mut body = super::lock(&self.0).pop().unwrap_or_default();
        if body.len() < length {
            body.resize(length, 0);
        }
        body
    }

    fn give_back(&self, body: Vec<u8>) {
        let mut bodies = super::lock(&self.0);
        if bodies.len() < MAX_WRITES {
            bodies.push(body);
        }
    }
}

/// So many bytes a second, and a second's worth at once.
pub(super) struct Pace {
    /// `u64::MAX`: as many as there are.
    rate: AtomicU64,
    /// When all that was taken so far is paid for.
    paid: std::sync::Mutex<std::time::Instant>,
}

impl Pace {
    pub(super) fn new(rate: Option<u64>) -> Self {
        let rate = AtomicU64::new(rate.unwrap_or(u64::MAX));
        Self { rate, paid: std::sync::Mutex::new(clock::steady()) }
    }

    /// Somebody else wants it, too, who may take this much.
    pub(super) fn lift(&self, rate: Option<u64>) {
        self.rate.fetch_max(rate.unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    async fn take(&self, bytes: u64) {
        let rate = self.rate.load(Ordering::Relaxed);
        if rate == u64::MAX {
            return;
        }
        let now = clock::steady();
        let ahead = {
            let mut paid = super::lock(&self.paid);
            *paid = (*paid).max(now) + Duration::from_secs_f64(bytes as f64 / rate.max(1) as f64);
            paid.saturating_duration_since(now)
        };
        sleep(ahead.saturating_sub(Duration::from_secs(1))).await;
    }
}
