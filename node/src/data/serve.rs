//! Serves a version to a peer: its manifest, or its chunks as a member of the swarm.
//!
//! ```text
//!  peer ─► may its party read this version?  no, or no such version ─► the stream ends without a word
//!       ─► Map ─► asks … ─► turns (sharing.rs) ─► chunks
//! ```
//!
//! What a peer may read is looked up when its stream begins, and again before each chunk and each piece of news if the
//! state has gone on: a version that is no longer shared stops in the middle of a queue. A node that has lost touch
//! with the state cannot look it up, and stops serving other parties. Whoever pulls itself serves what has come so
//! far.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bytes::Bytes;
use futures::future::try_join_all;
use mesh_consensus::id::{NodeId, VersionId};
use mesh_storage::bitmap::Bitmap;
use mesh_storage::swarm::{self, Reply};
use mesh_transport::codec::{decode, encode};
use mesh_transport::net::{ReceiveHalf, SendHalf, Stream};
use tokio::sync::mpsc;
use tokio::time::{interval, timeout};

use super::Data;
use super::sharing::Sharing;
use super::wire::{Ask, Give, MAX_ASK_BYTES, MAX_NAMED, MAX_OTHERS, MAX_STRIPS, cut};

/// How often a puller hears what is new here.
const TELL: Duration = Duration::from_millis(150);
/// How often it is looked whether more can be sent at a time.
const TURNS: Duration = Duration::from_millis(40);
/// Bytes that are written at a time.
const PIECE: usize = 256 << 10;
/// A puller that takes nothing for this long is left alone.
const UNREAD: Duration = Duration::from_secs(30);

/// A manifest is sent at this rate at least, in bytes a second.
const SLOWEST: u64 = 256 << 10;

/// The puller is gone, or must be left.
struct Over;

impl Data {
    /// Sends the manifest, if the peer may have it.
    pub(crate) async fn serve_manifest(
        &self,
        from: NodeId,
        version: VersionId,
        mut stream: Stream,
    ) {
        let Some(found) = self.readable(from, version).await else { return };
        let store = self.store.clone();
        let Ok(bytes) = super::blocking(move || store.manifest_bytes(found.manifest)).await else {
            return;
        };
        let patience = UNREAD + Duration::from_secs(bytes.len() as u64 / SLOWEST);
        if let Ok(Ok(())) = timeout(patience, stream.send_frame(&bytes)).await {
            stream.finish();
            // The end must reach the peer before the stream is dropped.
            let _ = timeout(UNREAD, stream.stopped()).await;
        }
    }

    /// Serves chunks until the peer goes, or may not read it any more; `may` says whether it is served at all.
    pub(crate) async fn serve_swarm(
        &self,
        from: NodeId,
        version: VersionId,
        link: u64,
        stream: Stream,
        may: &(dyn Fn() -> bool + Send + Sync),
    ) {
        let Some(found) = self.readable(from, version).await else { return };
        let Some(sharing) = self.sharing(version, found.manifest).await else { return };
        // Its place is free again also if this is dropped, as it is when the connection goes.
        let Some((_place, turns)) = self.welcome(&sharing, from) else { return };
        let (_expected, arriving) = self.expect_strips((from, link));
        let (send, receive) = stream.split();
        let upload = Upload {
            data: self,
            sharing: &sharing,
            from,
            told: Bitmap::new(sharing.chunks()),
            others: BTreeSet::new(),
            checked: found.index,
            may,
            send,
            arrived: BTreeMap::new(),
            strips: Vec::new(),
        };
        tokio::select! {
            () = hear(receive, from, &sharing) => {}
            _ = upload.run(turns, arriving) => {}
        }
    }
}

/// A further stream for the bytes of a link.
pub(super) struct Strip {
    /// From one on.
    number: u8,
    send: SendHalf,
    /// Nothing comes here; dropped, it would say that nothing may.
    _receive: ReceiveHalf,
}

/// While it lives, strips of a link are taken.
struct Expected<'a> {
    data: &'a Data,
    link: (NodeId, u64),
}

impl Drop for Expected<'_> {
    fn drop(&mut self) {
        super::lock(&self.data.strips).remove(&self.link);
    }
}

impl Data {
    fn expect_strips(&self, link: (NodeId, u64)) -> (Expected<'_>, mpsc::Receiver<Strip>) {
        let (sender, arriving) = mpsc::channel(MAX_STRIPS);
        super::lock(&self.strips).insert(link, sender);
        (Expected { data: self, link }, arriving)
    }

    /// A peer offers a further stream for a link of its own. What it may read was, and is, judged on the link.
    pub(crate) fn take_strip(&self, link: (NodeId, u64), number: u8, stream: Stream) {
        let Some(expecting) = super::lock(&self.strips).get(&link).cloned() else { return };
        let (send, receive) = stream.split();
        // One that nobody has room for is dropped, which tells the peer.
        let _ = expecting.try_send(Strip { number, send, _receive: receive });
    }
}

/// Takes in what the puller says, as long as it speaks sense.
async fn hear(mut receive: ReceiveHalf, from: NodeId, sharing: &Sharing) {
    while let Ok(Some(bytes)) = receive.recv_frame(MAX_ASK_BYTES).await {
        match decode::<Ask>(&bytes) {
            Ok(Ask::Chunk(chunk)) => sharing.on_ask(from, swarm::Ask::Chunk(chunk)),
            Ok(Ask::Any(count)) => sharing.on_ask(from, swarm::Ask::Any(count)),
            Ok(Ask::Cancel(chunk)) => sharing.on_cancel(from, chunk),
            Ok(Ask::Have(chunks)) if sharing.on_have(from, &chunks) => {}
            Ok(Ask::Have(_)) | Err(_) => return,
        }
    }
}

/// Sends all of a part of a chunk.
async fn pour(sharing: &Sharing, send: &mut SendHalf, mut part: Bytes) -> Result<(), Over> {
    while !part.is_empty() {
        // However slow the puller is, something must move.
        match timeout(UNREAD, send.send_some(&mut part, PIECE)).await {
            Ok(Ok(sent)) => sharing.on_bytes(sent),
            _ => return Err(Over),
        }
    }
    Ok(())
}

/// One puller, as it is served.
struct Upload<'a> {
    data: &'a Data,
    sharing: &'a Sharing,
    from: NodeId,
    /// What the puller was told that we have.
    told: Bitmap,
    /// Of whom it was told.
    others: BTreeSet<NodeId>,
    /// Up to which entry of the log it is known that it may read.
    checked: u64,
    may: &'a (dyn Fn() -> bool + Send + Sync),
    send: SendHalf,
    /// Strips that wait for those before them, and those in use.
    arrived: BTreeMap<u8, Strip>,
    strips: Vec<Strip>,
}

impl Upload<'_> {
    async fn run(
        mut self,
        mut turns: mpsc::Receiver<Reply>,
        mut arriving: mpsc::Receiver<Strip>,
    ) -> Result<(), Over> {
        self.told = self.sharing.have();
        let map = Give::Map(self.told.to_bytes());
        self.say(&map).await?;
        let mut ticks = interval(TELL);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut pulse = interval(TURNS);
        pulse.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased;
                _ = pulse.tick() => self.sharing.on_tick(),
                _ = ticks.tick() => self.tell_news().await?,
                Some(strip) = arriving.recv() => self.widen(strip),
                // Its place was taken by another stream of the same node, or it was too slow.
                turn = turns.recv() => self.take_turn(turn.ok_or(Over)?).await?,
            }
        }
    }

    /// Takes a strip into use, and those that waited for it.
    fn widen(&mut self, strip: Strip) {
        if usize::from(strip.number) <= MAX_STRIPS {
            self.arrived.insert(strip.number, strip);
        }
        let next = |strips: &[Strip]| strips.len() as u8 + 1;
        while let Some(strip) = self.arrived.remove(&next(&self.strips)) {
            self.strips.push(strip);
        }
    }

    async fn take_turn(&mut self, turn: Reply) -> Result<(), Over> {
        match turn {
            Reply::Chunk(_, chunk) => {
                let given = self.give(chunk).await;
                self.sharing.on_sent(self.from);
                given
            }
            Reply::Refused(_, chunk) => self.say(&Give::Refused(chunk)).await,
            Reply::Nothing(_) => self.say(&Give::Nothing).await,
        }
    }

    async fn give(&mut self, number: u32) -> Result<(), Over> {
        self.check().await?;
        let Some(bytes) = self.sharing.read(number).await else {
            return self.say(&Give::Refused(number)).await;
        };
        let length = u32::try_from(bytes.len()).map_err(|_| Over)?;
        let parts = 1 + self.strips.len();
        self.say(&Give::Chunk { number, bytes: length, parts: parts as u8 }).await?;
        let mut rest = Bytes::from(bytes);
        let mut parts = cut(rest.len(), parts).map(|part| rest.split_to(part)).collect::<Vec<_>>();
        let streams =
            std::iter::once(&mut self.send).chain(self.strips.iter_mut().map(|s| &mut s.send));
        let sending =
            streams.zip(parts.drain(..)).map(|(send, part)| pour(self.sharing, send, part));
        try_join_all(sending).await?;
        let sent = u64::from(length);
        self.data.sent_bytes.fetch_add(sent, std::sync::atomic::Ordering::Relaxed);
        Ok(())
    }

    /// Whether it may still read, if the state has gone on, and is still served.
    async fn check(&mut self) -> Result<(), Over> {
        if !(self.may)() {
            return Err(Over);
        }
        let index = self.data.index();
        if index != self.checked {
            self.data.readable(self.from, self.sharing.version).await.ok_or(Over)?;
            self.checked = index;
        }
        Ok(())
    }

    /// What has come here since, and who else pulls.
    async fn tell_news(&mut self) -> Result<(), Over> {
        self.check().await?;
        if self.told.is_full() {
            // Nothing can be new.
        } else {
            let have = self.sharing.have();
            let news = have.present().filter(|number| !self.told.get(*number));
            let news: Vec<u32> = news.filter_map(|number| u32::try_from(number).ok()).collect();
            for part in news.chunks(MAX_NAMED) {
                self.say(&Give::Have(part.to_vec())).await?;
            }
            self.told = have;
        }
        let others: BTreeSet<NodeId> =
            self.sharing.others(self.from).into_iter().take(MAX_OTHERS).collect();
        if !others.is_subset(&self.others) {
            self.say(&Give::Others(others.iter().copied().collect())).await?;
            self.others = others;
        }
        Ok(())
    }

    async fn say(&mut self, give: &Give) -> Result<(), Over> {
        let bytes = encode(give).map_err(|_| Over)?;
        match timeout(UNREAD, self.send.send_frame(&bytes)).await {
            Ok(Ok(())) => Ok(()),
            _ => Err(Over),
        }
    }
}
