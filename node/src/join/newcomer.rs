//! The newcomer's side of a join.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ed25519_dalek::SigningKey;
use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use mesh_consensus::command::Batch;
use mesh_consensus::id::{Epoch, MeshId, NodeId, PartyId, TicketId};
use mesh_consensus::log::Identity;
use mesh_transport::codec::{decode, encode};
use mesh_transport::identity::NodeKey;
use mesh_transport::net::{
    JoinError as Unanswered, Net, Service, Stream, Tuning, Welcome as Judged,
};
use mesh_transport::ticket::{Kind, Ticket};
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, timeout};

use super::{Choices, JoinError, begin, keep_config, keep_name};
use crate::author::numbers::{MAX_NUMBER, used};
use crate::awareness::hub::{Peer, peers_in};
use crate::clock;
use crate::dir::{Dir, DirError, Membership, PENDING};
use crate::party::PartySecret;
use crate::state::command::{Act, Rejoin};
use crate::state::founding::mesh_id;
use crate::state::invite::{sign_found, sign_found_consent};
use crate::state::name::Name;
use crate::state::refusal::Refusal;
use crate::state::ticket::{sign_consent, sign_join};
use crate::wire::{JoinReply, JoinRequest, Welcome};

/// An address that says nothing for this long is no longer waited for alone.
const NEXT: Duration = Duration::from_millis(500);
/// The code of whoever was removed itself.
const NO_MEMBER: u16 = Refusal::NotMember as u16;
/// How long a newcomer keeps trying while there is no leader.
const NO_LEADER: Duration = Duration::from_secs(30);
/// How long it waits for the other parties to agree.
const CONSENT: Duration = Duration::from_secs(600);
/// How often it asks whether they have.
const ASK_AGAIN: Duration = Duration::from_secs(1);
/// Members that a node which comes back asks at a time.
const ASKED_AT_ONCE: usize = 16;
/// How long it waits for the others once one has answered.
const OTHERS: Duration = Duration::from_secs(2);
/// An address that was tried, and how it failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tried {
    /// Whose.
    pub node: NodeId,
    /// Where.
    pub address: SocketAddr,
    /// How it failed.
    pub how: String,
}

/// What came of a join.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Joined {
    /// The mesh.
    pub mesh: MeshId,
    /// The node.
    pub node: NodeId,
    /// What it is called.
    pub name: Name,
    /// Its party.
    pub party: PartyId,
}

/// Answers nobody: a newcomer has nothing to say yet.
struct Nobody;

impl Service for Nobody {
    fn hello(&self) -> Vec<u8> {
        Vec::new()
    }

    fn welcome(&self, _: NodeId, _: &[u8]) -> Judged {
        Judged::No
    }

    fn still(&self, _: NodeId) -> Judged {
        Judged::No
    }

    fn on_message(&self, _: NodeId, _: Vec<u8>) {}

    fn on_call(&self, _: NodeId, _: Vec<u8>) -> futures::future::BoxFuture<'_, Vec<u8>> {
        Box::pin(async { Vec::new() })
    }

    fn on_stream(&self, _: NodeId, _: Vec<u8>, _: Stream) -> futures::future::BoxFuture<'_, ()> {
        Box::pin(async {})
    }

    fn on_join(&self, _: NodeId, _: Vec<u8>) -> futures::future::BoxFuture<'_, Vec<u8>> {
        Box::pin(async { Vec::new() })
    }
}

/// Joins with a ticket. The node is not started. `tell` hears what is being waited for.
pub async fn join(
    dir: &Dir,
    ticket: &Ticket,
    choices: &Choices,
    tell: impl Fn(&str),
) -> Result<Joined, JoinError> {
    if let Ok(Some(membership)) = dir.membership()
        && membership.identity.mesh != ticket.mesh
    {
        let (path, holds) = (dir.path().to_path_buf(), membership.identity.mesh);
        return Err(JoinError::OtherMesh { path, holds, ticket: ticket.mesh });
    }
    let claim = dir.claim()?;
    if dir.is_joining() && ticket.kind != Kind::NewParty {
        return Err(DirError::Joining(dir.path().to_path_buf()).into());
    }
    // Of a join that was interrupted, or of which nobody knows what came of it.
    let has_key = dir.file("node.key").exists();
    let heard = AtomicBool::new(false);
    let joined = try_join(dir, ticket, choices, &heard, tell).await;
    if let Err(error) = &joined {
        let refused = matches!(error, JoinError::Refused { .. } | JoinError::PartyName(_));
        // The mesh may have admitted this key, or may yet found this party: the same command then goes on.
        let may_go_on = has_key || heard.load(Ordering::Relaxed);
        if refused || !may_go_on {
            let _ = dir.clear();
            dir.unmake(&claim.made);
        }
    }
    joined
}

/// A party that this machine has asked to found and does not belong to yet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Pending {
    invite: TicketId,
    /// What it wants to be called.
    party: Name,
    /// The seed of the ticket with which its first node will join.
    first: [u8; 32],
    /// The request that waits for the other parties.
    request: Option<u64>,
}

impl Pending {
    /// What was begun here with the same invite for the same party, or a new beginning with new keys.
    fn begin(dir: &Dir, invite: TicketId, party: Name) -> Result<Self, JoinError> {
        let begun = dir.cached::<Self>(PENDING);
        let begun = begun.filter(|one| (one.invite, &one.party) == (invite, &party));
        if let Some(begun) = begun
            && dir.node_key().is_ok()
            && let Ok(Some(_)) = dir.party_secret()
        {
            return Ok(begun);
        }
        // The other parties may yet agree to the one that was begun before, and its keys are here only.
        if dir.is_joining() {
            return Err(DirError::Joining(dir.path().to_path_buf()).into());
        }
        let begun = Self { invite, party, first: crate::random(), request: None };
        dir.keep_node_key(&NodeKey::generate())?;
        dir.keep_party_secret(&PartySecret::generate())?;
        dir.keep_cached(PENDING, &begun)?;
        Ok(begun)
    }
}

async fn try_join(
    dir: &Dir,
    ticket: &Ticket,
    choices: &Choices,
    heard: &AtomicBool,
    tell: impl Fn(&str),
) -> Result<Joined, JoinError> {
    let wanted = keep_config(dir, choices)?;
    let seed = SigningKey::from_bytes(&ticket.seed);
    let (welcome, name, party, secret, key) = match ticket.kind {
        Kind::NewParty => {
            let name = choices.party.clone().unwrap_or_else(|| wanted.clone());
            let invite = TicketId(seed.verifying_key().to_bytes());
            let pending = Pending::begin(dir, invite, name)?;
            let key = dir.node_key()?;
            let secret = dir.party_secret()?.ok_or(JoinError::NoMembership)?;
            let first = SigningKey::from_bytes(&pending.first);
            let door = Door::open(&key, ticket, heard)?;
            door.found(dir, ticket.mesh, &seed, &secret, pending, &tell).await?;
            let entered =
                door.enter(&key, ticket.mesh, &first, secret.id(), choices, wanted, &tell).await;
            door.net.shutdown().await;
            let (welcome, name) = entered?;
            (welcome, name, secret.id(), Some(secret), key)
        }
        Kind::Member | Kind::Worker => {
            let key = own_key(dir)?;
            let door = Door::open(&key, ticket, heard)?;
            let entered =
                door.enter(&key, ticket.mesh, &seed, ticket.party, choices, wanted, &tell).await;
            door.net.shutdown().await;
            let (welcome, name) = entered?;
            let secret = welcome.secret.map(PartySecret::new);
            (welcome, name, ticket.party, secret, key)
        }
    };
    if welcome.party != party {
        return Err(JoinError::Lie("it names another party than the ticket"));
    }
    keep_name(dir, &name)?;
    settle(dir, &key, ticket.mesh, welcome, secret)?;
    dir.forget_cached(PENDING)?;
    Ok(Joined { mesh: ticket.mesh, node: key.id(), name, party })
}

/// The key of a join that was interrupted, or a new one. The mesh may have admitted it already, and it is not to be
/// admitted twice.
fn own_key(dir: &Dir) -> Result<NodeKey, JoinError> {
    if let Ok(key) = dir.node_key() {
        return Ok(key);
    }
    let key = NodeKey::generate();
    dir.keep_node_key(&key)?;
    Ok(key)
}

/// Makes the log and the file `member` for a seat that was given.
fn settle(
    dir: &Dir,
    key: &NodeKey,
    mesh: MeshId,
    welcome: Welcome,
    secret: Option<PartySecret>,
) -> Result<(), JoinError> {
    if mesh_id(&welcome.founding) != mesh {
        return Err(JoinError::Lie("its founding is not that of the mesh"));
    }
    if let Some(secret) = &secret {
        if secret.id() != welcome.party {
            return Err(JoinError::Lie("the secret is not the party's"));
        }
        dir.keep_party_secret(secret)?;
    }
    let identity = Identity { mesh, epoch: welcome.epoch, node: key.id(), raft_id: welcome.seat };
    dir.keep_cached("peers", &peers_in(mesh, &welcome))?;
    let membership = Membership {
        identity,
        party: welcome.party,
        worker: welcome.worker,
        chain: welcome.chain,
        introduced: welcome.introduced,
        voters: welcome.voters,
        left: false,
    };
    Ok(begin::begin(dir, &membership, None)?)
}

/// Takes a new seat for a node whose log is lost, damaged or of an epoch that has ended. The old log is
/// moved aside.
pub async fn rejoin(dir: &Dir, tell: impl Fn(&str)) -> Result<(), JoinError> {
    dir.check()?;
    let _lock = dir.lock()?;
    let key = dir.node_key()?;
    let membership = dir.membership()?.ok_or(JoinError::NoMembership)?;
    let peers: Vec<Peer> = dir.cached("peers").unwrap_or_default();
    let meet: Vec<(NodeId, SocketAddr)> = (peers.iter())
        .flat_map(|peer| peer.data.iter().map(|address| (peer.node, *address)))
        .collect();
    let mesh = membership.identity.mesh;
    let door = Door { net: bind(&key)?, meet, heard: &AtomicBool::new(false) };
    let seated = door.sit_down(dir, &key, mesh, &tell).await;
    door.net.shutdown().await;
    let welcome = seated?;
    if welcome.party != membership.party {
        return Err(JoinError::Lie("it names another party than this node's"));
    }
    settle(dir, &key, mesh, welcome, None)
}

/// Members that are of one epoch.
#[derive(Debug, Default)]
struct Group {
    /// The highest number of ours that has counted, as each of them says.
    tops: Vec<u64>,
    meet: Vec<(NodeId, SocketAddr)>,
}

/// What most can agree on: the one in the middle, so that one liar among honest ones moves it no further than they
/// are apart. `None` if nobody's word makes sense.
fn middle(mut tops: Vec<u64>) -> Option<u64> {
    tops.retain(|top| *top <= MAX_NUMBER);
    tops.sort_unstable();
    tops.get(tops.len() / 2).copied()
}

/// The way in: keys to expect, and where.
struct Door<'a> {
    net: Net,
    meet: Vec<(NodeId, SocketAddr)>,
    /// Whether somebody may have heard us: then the mesh may have done what was asked, whatever came back.
    heard: &'a AtomicBool,
}

fn bind(key: &NodeKey) -> Result<Net, JoinError> {
    let any: [SocketAddr; 2] =
        ["0.0.0.0:0", "[::]:0"].map(|text| text.parse().expect("as written"));
    let both = Net::bind(key, &any, Tuning::default(), Arc::new(Nobody));
    // A machine without IPv6.
    both.or_else(|_| Net::bind(key, &any[..1], Tuning::default(), Arc::new(Nobody)))
        .map_err(|error| JoinError::Socket(Box::new(error)))
}

impl<'a> Door<'a> {
    fn open(key: &NodeKey, ticket: &Ticket, heard: &'a AtomicBool) -> Result<Self, JoinError> {
        let meet = (ticket.meet.iter())
            .flat_map(|meet| meet.addresses.iter().map(|address| (meet.node, *address)))
            .collect();
        Ok(Self { net: bind(key)?, meet, heard })
    }

    /// Asks until a member knows the answer. The next address is asked once the one before has failed, or has
    /// said nothing for a moment: some of a node's addresses lead nowhere from here.
    async fn ask(
        &self,
        request: &JoinRequest,
        tell: &impl Fn(&str),
    ) -> Result<JoinReply, JoinError> {
        let bytes = encode(request).map_err(|_| JoinError::Lie("the request is too large"))?;
        let deadline = Instant::now() + NO_LEADER;
        loop {
            let (mut tried, mut no_leader) = (Vec::new(), false);
            let (mut left, mut asked) = (self.meet.iter(), FuturesUnordered::new());
            loop {
                if let Some((node, address)) = left.next() {
                    let answer = self.net.join(*node, *address, bytes.clone());
                    asked.push(async move { (*node, *address, answer.await) });
                }
                let patience = if left.len() > 0 { NEXT } else { Duration::MAX };
                let (node, address, answer) = match timeout(patience, asked.next()).await {
                    Ok(Some(answered)) => answered,
                    Ok(None) => break,
                    Err(_) => continue,
                };
                if !matches!(answer, Err(Unanswered::Unreachable { .. })) {
                    self.heard.store(true, Ordering::Relaxed);
                }
                let how = match answer.map(|answer| decode::<JoinReply>(&answer)) {
                    Ok(Ok(JoinReply::NoLeader)) => {
                        no_leader = true;
                        continue;
                    }
                    // Who is no member itself says nothing about the mesh.
                    Ok(Ok(JoinReply::Refused { code, why })) if code == Some(NO_MEMBER) => why,
                    Ok(Ok(reply)) => return Ok(reply),
                    Ok(Err(error)) => error.to_string(),
                    Err(error) => error.to_string(),
                };
                tried.push(Tried { node, address, how });
            }
            if !no_leader {
                return Err(JoinError::Unreachable(tried));
            }
            if Instant::now() >= deadline {
                return Err(JoinError::NoLeader);
            }
            tell("the mesh has no leader yet");
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
    }

    /// Has a member that lost its log given a new seat.
    ///
    /// After a recovery some members may still be of the epoch that has ended, so all are asked where
    /// they are, and the latest epoch comes first. Whoever names one that does not exist is passed over.
    async fn sit_down(
        &self,
        dir: &Dir,
        key: &NodeKey,
        mesh: MeshId,
        tell: &impl Fn(&str),
    ) -> Result<Welcome, JoinError> {
        let mut last = None;
        for (epoch, Group { tops, meet }) in self.epochs().await?.into_iter().rev() {
            let Some(top) = middle(tops) else {
                last = last.or(Some(JoinError::Lie("its numbers make no sense")));
                continue;
            };
            let reserved = dir.reserved().ok().filter(|reserved| *reserved <= MAX_NUMBER);
            let number = used(reserved.unwrap_or(0), top).saturating_add(1);
            let command = Act::Rejoin(Rejoin {}).command();
            let batch = Batch::sign(key.signing(), mesh, epoch, number, &[command])
                .map_err(|_| JoinError::Lie("its numbers make no sense"))?;
            let request = JoinRequest::Rejoin { batch: batch.as_bytes().to_vec() };
            let door = Self { net: self.net.clone(), meet, heard: self.heard };
            match door.ask(&request, tell).await {
                Ok(JoinReply::Welcome(welcome)) if welcome.epoch == epoch => {
                    // Only now: a number that nobody took, because somebody lied about it, leaves no trace here.
                    dir.reserve(number)?;
                    return Ok(*welcome);
                }
                Ok(reply) => last = last.or(Some(unexpected(reply))),
                Err(error) => last = last.or(Some(error)),
            }
        }
        Err(last.unwrap_or(JoinError::Unreachable(Vec::new())))
    }

    /// Asks everyone where the mesh is: a few at a time, and not for long once somebody has answered.
    async fn epochs(&self) -> Result<BTreeMap<Epoch, Group>, JoinError> {
        let request = encode(&JoinRequest::Where).map_err(|_| JoinError::Lie("it is too large"))?;
        let asked = self.meet.iter().map(|(node, address)| {
            let request = request.clone();
            async move { (*node, *address, self.net.join(*node, *address, request).await) }
        });
        let mut answers = futures::stream::iter(asked).buffer_unordered(ASKED_AT_ONCE);
        let (mut epochs, mut tried) = (BTreeMap::<Epoch, Group>::new(), Vec::new());
        let mut until = None;
        loop {
            let next = match until {
                None => answers.next().await,
                Some(until) => tokio::time::timeout_at(until, answers.next()).await.ok().flatten(),
            };
            let Some((node, address, answer)) = next else { break };
            match answer.map(|bytes| decode::<JoinReply>(&bytes)) {
                Ok(Ok(JoinReply::Here { epoch, top })) => {
                    let group = epochs.entry(epoch).or_default();
                    group.tops.push(top);
                    group.meet.push((node, address));
                    until.get_or_insert_with(|| Instant::now() + OTHERS);
                }
                Ok(_) => tried.push(Tried { node, address, how: "it did not say".into() }),
                Err(error) => tried.push(Tried { node, address, how: error.to_string() }),
            }
        }
        if epochs.is_empty() { Err(JoinError::Unreachable(tried)) } else { Ok(epochs) }
    }

    #[expect(clippy::too_many_arguments, reason = "what one signs with, and what one is called")]
    async fn enter(
        &self,
        key: &NodeKey,
        mesh: MeshId,
        seed: &SigningKey,
        party: PartyId,
        choices: &Choices,
        wanted: Name,
        tell: &impl Fn(&str),
    ) -> Result<(Welcome, Name), JoinError> {
        let ticket = TicketId(seed.verifying_key().to_bytes());
        let mut name = wanted.clone();
        for attempt in 0..3u8 {
            let request = JoinRequest::Join {
                ticket,
                name: name.clone(),
                proof: sign_join(seed, mesh, key.id()),
                consent: sign_consent(key.signing(), mesh, ticket, party),
                clock: clock::now(),
            };
            match self.ask(&request, tell).await? {
                JoinReply::Welcome(welcome) => return Ok((*welcome, name)),
                // Several nodes on one machine have one host name: add a little of the key.
                JoinReply::Refused { code, .. }
                    if code == Some(Refusal::NameTaken.code())
                        && choices.name.is_none()
                        && attempt < 2 =>
                {
                    let more = usize::from(attempt) * 4 + 4;
                    let id: String = key.id().to_string().chars().take(more).collect();
                    name = format!("{wanted}-{id}")
                        .parse()
                        .map_err(|_| JoinError::Lie("the host's name is too long"))?;
                }
                reply => return Err(unexpected(reply)),
            }
        }
        Err(JoinError::Lie("it says that every name is taken"))
    }

    /// Has the party founded, and waits until the others agree. Asked again, it goes on where it was.
    async fn found(
        &self,
        dir: &Dir,
        mesh: MeshId,
        seed: &SigningKey,
        secret: &PartySecret,
        mut pending: Pending,
        tell: &impl Fn(&str),
    ) -> Result<(), JoinError> {
        let (signing, sealing, name) = (secret.id(), secret.sealing(), pending.party.clone());
        let first = SigningKey::from_bytes(&pending.first).verifying_key();
        let ticket = TicketId(first.to_bytes());
        let found = JoinRequest::Found {
            invite: pending.invite,
            name: name.clone(),
            signing,
            sealing,
            ticket,
            proof: sign_found(seed, mesh, &name, signing, &sealing, ticket),
            consent: sign_found_consent(&secret.signing(), mesh, &name, &sealing, ticket),
        };
        let deadline = Instant::now() + CONSENT;
        loop {
            let asked = match pending.request {
                Some(request) => self.ask(&JoinRequest::Decided { request, signing }, tell).await?,
                None => self.ask(&found, tell).await?,
            };
            match asked {
                JoinReply::Founded => return Ok(()),
                JoinReply::Waits { request } => {
                    if pending.request != Some(request) {
                        pending.request = Some(request);
                        dir.keep_cached(PENDING, &pending)?;
                    }
                    if Instant::now() >= deadline {
                        return Err(JoinError::Waits { request });
                    }
                    tell(&format!(
                        "request {request} waits for the other parties: mesh grant {request}"
                    ));
                    tokio::time::sleep(ASK_AGAIN).await;
                }
                JoinReply::Refused { code, .. } if code == Some(Refusal::NameTaken.code()) => {
                    return Err(JoinError::PartyName(name));
                }
                reply => return Err(unexpected(reply)),
            }
        }
    }
}

fn unexpected(reply: JoinReply) -> JoinError {
    match reply {
        JoinReply::Refused { code, why } => JoinError::Refused { code, why },
        JoinReply::NoLeader => JoinError::NoLeader,
        _ => JoinError::Lie("it answered another question"),
    }
}

#[cfg(test)]
mod tests {
    use mesh_transport::ticket::Meet;

    use super::*;

    fn ticket(kind: Kind, meet: Vec<Meet>) -> Ticket {
        let (mesh, party) = (MeshId([1; 32]), PartyId([2; 32]));
        let expires = clock::now().after(Duration::from_secs(3600));
        Ticket { mesh, party, kind, expires, uses: 1, seed: [3; 32], meet }
    }

    fn choices() -> Choices {
        let listen = vec![("127.0.0.1".parse().unwrap(), Some(0))];
        Choices { name: Some("late".parse().unwrap()), listen, ..Choices::default() }
    }

    #[tokio::test]
    async fn the_keys_of_a_party_that_waits_for_the_others_are_not_overwritten() {
        let temp = tempfile::tempdir().unwrap();
        let dir = Dir::at(temp.path().join("node"));
        dir.create().unwrap();
        let begin =
            |invite: u8| Pending::begin(&dir, TicketId([invite; 32]), "eps".parse().unwrap());
        let begun = begin(1).unwrap();
        let keys = || (dir.node_key().unwrap().id(), dir.party_secret().unwrap().unwrap().id());
        let kept = keys();
        fn waits<T>(tried: Result<T, JoinError>) -> bool {
            matches!(tried, Err(JoinError::Dir(DirError::Joining(_))))
        }
        assert!(waits(crate::join::found(&dir, &choices())));
        assert!(waits(begin(2)));
        for kind in [Kind::Member, Kind::Worker] {
            assert!(waits(join(&dir, &ticket(kind, Vec::new()), &choices(), |_| {}).await));
        }
        assert_eq!(keys(), kept);
        assert_eq!(begin(1).unwrap(), begun, "the same join goes on");
    }

    #[tokio::test]
    async fn a_join_that_nobody_heard_leaves_nothing_behind() {
        let temp = tempfile::tempdir().unwrap();
        for kind in [Kind::Member, Kind::Worker, Kind::NewParty] {
            let dir = Dir::at(temp.path().join("above/node"));
            let lost = join(&dir, &ticket(kind, Vec::new()), &choices(), |_| {}).await;
            assert!(matches!(lost, Err(JoinError::Unreachable(_))), "{lost:?}");
            assert!(!temp.path().join("above").exists(), "{kind:?}");
        }
    }

    #[tokio::test]
    async fn a_join_that_somebody_may_have_heard_keeps_its_key_and_goes_on_with_it() {
        // It hears what it is asked, and its answer cannot be read.
        let key = NodeKey::generate();
        let here: [SocketAddr; 1] = ["127.0.0.1:0".parse().unwrap()];
        let member = Net::bind(&key, &here, Tuning::default(), Arc::new(Nobody)).unwrap();
        let meet = vec![Meet { node: key.id(), addresses: member.addresses() }];
        let temp = tempfile::tempdir().unwrap();
        for (kind, name) in [(Kind::Member, "one"), (Kind::NewParty, "two")] {
            let dir = Dir::at(temp.path().join(name));
            let mut keys = Vec::new();
            // Whether it is heard again or nobody is there any more.
            for meet in [meet.clone(), meet.clone(), Vec::new()] {
                let lost = join(&dir, &ticket(kind, meet), &choices(), |_| {}).await;
                assert!(matches!(lost, Err(JoinError::Unreachable(_))), "{lost:?}");
                keys.push(dir.node_key().unwrap().id());
            }
            assert!(keys.iter().all(|one| *one == keys[0]), "{keys:?}");
        }
        member.shutdown().await;
    }

    #[test]
    fn one_liar_moves_the_number_no_further_than_the_honest_ones_are_apart() {
        assert_eq!(middle(vec![7, u64::MAX, 9]), Some(9));
        assert_eq!(middle(vec![7, MAX_NUMBER, 9]), Some(9));
        assert_eq!(middle(vec![0, 7, 9]), Some(7));
        assert_eq!(middle(vec![5]), Some(5));
        assert_eq!(middle(vec![u64::MAX, MAX_NUMBER + 1]), None);
    }
}
