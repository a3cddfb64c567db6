//! What other parties learn of a party's data: what they were given, and otherwise that there is something.
//!
//! Two parties on real processes. The spy is a member of the second one that speaks by hand, and knows ids and
//! hashes that it should have no use for.

mod lies;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use fastrand::Rng;
use mesh_chaos_tests::hosts::binary::binary;
use mesh_chaos_tests::hosts::fleet::{Fleet, Plan, SETTLE};
use mesh_chaos_tests::hosts::process::{Host, Said};
use mesh_chaos_tests::hosts::until;
use mesh_consensus::id::{NodeId, VersionId};
use mesh_node::clock::steady;
use mesh_node::data::wire::{Ask, Give, MAX_GIVE_BYTES};
use mesh_node::wire::{Header, Reply, Request};
use mesh_storage::manifest::{MAX_MANIFEST_BYTES, Manifest};
use mesh_transport::codec::{decode, encode};
use mesh_transport::net::{ReceiveHalf, SendHalf};
use serde_json::Value;
use tokio::io::AsyncReadExt as _;

use crate::attacker::{Attacker, runtime};
use crate::{nobody_fell, secs, status};

/// How long a push or a pull may take here.
const MOVED: Duration = Duration::from_secs(120);
const OTHERS: &str = "clinic-b";

/// A dataset on disk: what it is called, where it is and what gives it away.
struct Secret {
    name: &'static str,
    dir: tempfile::TempDir,
    files: Vec<(&'static str, Vec<u8>)>,
}

impl Secret {
    fn new(name: &'static str, files: [&'static str; 2], bytes: usize, seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed);
        let mut large: Vec<u8> = format!("the large part of {name}").into();
        large.extend(std::iter::repeat_with(|| rng.u8(..)).take(bytes));
        let small = format!("what {name} says of its small part: {seed}\n").repeat(40).into_bytes();
        let (dir, files) =
            (tempfile::tempdir().unwrap(), Vec::from([(files[0], large), (files[1], small)]));
        for (path, content) in &files {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
        Self { name, dir, files }
    }

    fn bytes(&self) -> u64 {
        self.files.iter().map(|(_, content)| content.len() as u64).sum()
    }

    fn push(&self, host: &Host, flags: &[&str]) -> Value {
        let path = self.dir.path().to_str().unwrap();
        let words = [&["data", "push", path, "--name", self.name][..], flags].concat();
        let said = host.run(binary().unwrap(), &words, MOVED).unwrap();
        assert!(said.ok(), "{said:?}");
        show(host, self.name)
    }

    /// The names of the dataset and its files.
    fn names(&self) -> Vec<Vec<u8>> {
        let files = self.files.iter().map(|(path, _)| path.as_bytes().to_vec());
        files.chain([self.name.into()]).collect()
    }

    /// The size as it stands in the state, beside the number of files, and as it would on the wire.
    fn sizes(&self) -> Vec<Vec<u8>> {
        let files = self.files.len() as u64;
        let state = postcard::to_stdvec(&(self.bytes(), files)).unwrap();
        let wire = [self.bytes().to_le_bytes(), files.to_le_bytes()].concat();
        vec![state, wire, self.bytes().to_string().into()]
    }

    /// Pieces of its content, and every hash of it, as bytes and as text.
    fn content(&self, manifest: &Value, of: &Host) -> Vec<Vec<u8>> {
        let hash = manifest.as_str().unwrap();
        let bytes = fs::read(of.data().join("store/manifests").join(hash)).unwrap();
        let decoded = Manifest::decode(&bytes).unwrap();
        let mut needles: Vec<Vec<u8>> = vec![bytes[..bytes.len().min(64)].to_vec()];
        let mut add = |text: String| {
            needles.push(hex(&text));
            needles.push(text.into());
        };
        add(hash.to_owned());
        decoded.objects.iter().for_each(|object| add(object.id().to_string()));
        decoded.chunks().for_each(|chunk| add(chunk.id.to_string()));
        for (_, content) in &self.files {
            let at = [0, content.len() / 3, content.len() / 2, content.len() - 32];
            needles.extend(at.map(|at| content[at..at + 32].to_vec()));
        }
        needles
    }

    /// It came whole.
    fn is_at(&self, dir: &Path) {
        for (path, content) in &self.files {
            assert!(fs::read(dir.join(path)).unwrap() == *content, "{path} differs");
        }
    }

    fn pull(&self, host: &Host, reference: &str) {
        knows(host, reference);
        let to = tempfile::tempdir().unwrap();
        let dir = to.path().join("pulled");
        let words = ["data", "pull", reference, dir.to_str().unwrap()];
        let said = host.run(binary().unwrap(), &words, MOVED).unwrap();
        assert!(said.ok(), "{}: {said:?}", host.name);
        self.is_at(&dir);
    }
}

fn hex(text: &str) -> Vec<u8> {
    let digit = |byte: &u8| char::from(*byte).to_digit(16).unwrap() as u8;
    text.as_bytes().chunks(2).map(|two| 16 * digit(&two[0]) + digit(&two[1])).collect()
}

fn get(host: &Host, path: &str) -> (u16, Value) {
    let answer = host.client().ask("GET", path, None, secs(20)).unwrap();
    (answer.status, answer.body)
}

fn show(host: &Host, reference: &str) -> Value {
    let (status, body) = get(host, &format!("/v1/data/show?ref={reference}"));
    assert_eq!(status, 200, "{body}");
    body["item"].clone()
}

/// Waits until a host has heard of a version, and can read what it is called: it was pushed elsewhere.
fn knows(host: &Host, reference: &str) {
    let path = format!("/v1/data/show?ref={reference}");
    until(SETTLE, || (get(host, &path).0 == 200).then_some(()))
        .unwrap_or_else(|| panic!("{} never hears of {reference}", host.name));
}

fn version(of: &Value) -> VersionId {
    of["id"].as_str().unwrap().parse().unwrap()
}

/// Runs a command that may fail.
fn try_mesh(host: &Host, words: &[&str]) -> Said {
    host.run(binary().unwrap(), words, MOVED).unwrap()
}

/// Every file below a directory.
fn files_below(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut dirs = vec![dir.to_path_buf()];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(&dir).into_iter().flatten().flatten() {
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => dirs.push(entry.path()),
                Ok(kind) if kind.is_file() => found.push(entry.path()),
                _ => {}
            }
        }
    }
    found
}

/// Which of these bytes stand in some text. Rare first bytes make it quick enough for megabytes.
fn stands_in(text: &[u8], needles: &[Vec<u8>]) -> Option<usize> {
    let mut first = [const { Vec::new() }; 256];
    for (n, needle) in needles.iter().enumerate() {
        first[usize::from(needle[0])].push(n);
    }
    (0..text.len()).find_map(|at| {
        let here = &first[usize::from(text[at])];
        here.iter().copied().find(|n| text[at..].starts_with(&needles[*n]))
    })
}

/// Where in a host's whole data directory one of these stands: in a file, or in its name.
fn found_below(dir: &Path, needles: &[Vec<u8>]) -> Option<String> {
    files_below(dir).into_iter().find_map(|path| {
        let name = path.to_string_lossy().into_owned();
        // A file may go while we look.
        let text = fs::read(&path).unwrap_or_default();
        let n = stands_in(name.as_bytes(), needles).or_else(|| stands_in(&text, needles))?;
        Some(format!("{name}: {}", String::from_utf8_lossy(&needles[n])))
    })
}

/// Two nodes of one party, and one of another.
fn two_parties() -> Fleet {
    two_parties_of(Plan::loopback(2))
}

/// The same, the first two as planned.
fn two_parties_of(plan: Plan) -> Fleet {
    let mut fleet = plan.found().unwrap();
    let host = fleet.host(2).unwrap();
    let said = fleet.hosts[0].mesh(&["ticket", "new", "--new-party"]).unwrap();
    let ticket = said.lines().last().unwrap().trim().to_owned();
    let words = ["join", &ticket, "--listen", "127.0.0.1:0", "--name", "n2", "--party", OTHERS];
    host.mesh(&words).unwrap();
    fleet.hosts.push(host);
    until(SETTLE, || {
        fleet
            .hosts
            .iter()
            .all(|host| {
                let parties = get(host, "/v1/parties").1;
                parties["items"].as_array().is_some_and(|all| all.len() == 2)
            })
            .then_some(())
    })
    .expect("everybody knows both parties");
    assert_eq!(status(&fleet.hosts[2])["party"], OTHERS);
    // A voter keeps the whole log on its disk, where it can be searched.
    until(SETTLE, || (status(&fleet.hosts[2])["role"] == "voter").then_some(())).expect("it votes");
    fleet
}

/// How a node answers one who asks for data, to the end of the stream: what it says, and how it ends.
fn answer(spy: &Attacker, at: NodeId, header: &Header) -> (Vec<Vec<u8>>, String) {
    let stream = match spy.wants(at, header) {
        Ok(stream) => stream,
        Err(error) => return (Vec::new(), error.to_string()),
    };
    let (mut send, mut receive) = stream.split();
    let talk = async {
        for ask in [Ask::Have(vec![0]), Ask::Chunk(0), Ask::Any(3), Ask::Chunk(1)] {
            // It may have ended already.
            let _ = send.send_frame(&encode(&ask).unwrap()).await;
        }
        let mut said = Vec::new();
        loop {
            match receive.recv_frame(MAX_MANIFEST_BYTES).await {
                Ok(Some(bytes)) => said.push(bytes),
                end => return (said, format!("{end:?}")),
            }
        }
    };
    spy.waits(secs(20), talk).expect("a stream that says nothing ends")
}

/// Nobody among `at` says a word about these versions, and ends as for one that never was.
fn says_nothing(spy: &Attacker, at: &[NodeId], versions: &[VersionId], tries: usize) {
    type Of = fn(VersionId) -> Header;
    let kinds: [Of; 2] =
        [|version| Header::Manifest { version }, |version| Header::Swarm { version, link: 1 }];
    for _ in 0..tries {
        for (node, header) in at.iter().flat_map(|node| kinds.map(|kind| (*node, kind))) {
            let never = VersionId(std::array::from_fn(|_| fastrand::u8(..)));
            let absent = answer(spy, node, &header(never));
            assert!(absent.0.is_empty(), "something that does not exist: {absent:?}");
            for version in versions {
                assert_eq!(answer(spy, node, &header(*version)), absent);
            }
        }
    }
}

/// All that a member of another party is fed and told, for some seconds.
fn overheard(spy: &Attacker, at: NodeId) -> Vec<u8> {
    let mut all = Vec::new();
    let begun = steady();
    let mut feed = spy.watch(at, 0).unwrap();
    while begun.elapsed() < secs(2) {
        all.extend(spy.next(&mut feed, secs(2)).unwrap_or_default());
    }
    let records = Request::Records { known: Vec::new(), mine: Vec::new() };
    for request in [records, Request::Log { lines: 9999 }] {
        let reply = spy.ask(at, &request).unwrap();
        assert!(!matches!(reply, Reply::Log(_)), "another party's log");
        all.extend(encode(&reply).unwrap());
    }
    all
}

/// A puller's stream, spoken by hand.
struct Puller<'a> {
    spy: &'a Attacker,
    send: SendHalf,
    receive: ReceiveHalf,
}

impl<'a> Puller<'a> {
    fn open(spy: &'a Attacker, at: NodeId, version: VersionId) -> Self {
        let (send, receive) = spy.wants(at, &Header::Swarm { version, link: 1 }).unwrap().split();
        Self { spy, send, receive }
    }

    fn ask(&mut self, ask: &Ask) {
        let _ = self.spy.waits(secs(5), self.send.send_frame(&encode(ask).unwrap()));
    }

    /// What is given next, with the bytes of a chunk; `None` at the end.
    fn next(&mut self) -> Option<(Give, Vec<u8>)> {
        let next = async {
            let frame = self.receive.recv_frame(MAX_GIVE_BYTES).await.ok()??;
            let give: Give = decode(&frame).unwrap();
            let mut body = Vec::new();
            if let Give::Chunk { bytes, .. } = give {
                body = vec![0; bytes as usize];
                self.receive.read_exact(&mut body).await.ok()?;
            }
            Some((give, body))
        };
        self.spy.waits(secs(30), next).expect("it neither speaks nor ends")
    }

    /// The bytes of a chunk, whatever else is said meanwhile.
    fn chunk(&mut self, wanted: u32) -> Option<Vec<u8>> {
        self.ask(&Ask::Chunk(wanted));
        loop {
            match self.next()? {
                (Give::Chunk { number, .. }, body) if number == wanted => return Some(body),
                (Give::Refused(_), _) => return None,
                _ => {}
            }
        }
    }
}

/// By name, whatever the other party's node is asked, and as if it had never been.
fn is_unknown_by_name(host: &Host, party: &str, name: &str) {
    let never = "never-was";
    let ask = |name: &str| {
        let own = [
            format!("{party}/{name}"),
            format!("{party}/{name}@1"),
            format!("each/{name}"),
            name.to_owned(),
        ];
        let mut said = Vec::new();
        for reference in own {
            for verb in ["show", "log", "diff"] {
                let path = match verb {
                    "diff" => format!("/v1/data/diff?from={reference}&to={reference}"),
                    verb => format!("/v1/data/{verb}?ref={reference}"),
                };
                let (status, body) = get(host, &path);
                assert!((400..500).contains(&status), "{path}: {body}");
                said.push((status, body["error"].to_string().replace(name, "NAME")));
            }
        }
        let to = tempfile::tempdir().unwrap();
        let into = to.path().join("pulled");
        let reference = format!("{party}/{name}");
        for words in [
            vec!["data", "pull", &reference, into.to_str().unwrap()],
            vec!["data", "show", &reference],
            vec!["data", "verify", &reference],
        ] {
            let pull = try_mesh(host, &words);
            assert!(!pull.ok() && pull.is_report(), "{pull:?}");
            let said_here =
                pull.stderr.replace(name, "NAME").replace(into.to_str().unwrap(), "DIR");
            said.push((0, said_here));
        }
        assert!(!into.exists());
        said
    };
    assert_eq!(ask(name), ask(never));
}

#[test]
fn another_party_learns_nothing_of_private_data() {
    let mut fleet = two_parties();
    let party = fleet.party.clone();
    let secret = Secret::new(
        "marrow-zebra-trial",
        ["ward/tumour-patient-4711.bin", "zugzwang-diagnoses.csv"],
        3_456_789,
        77,
    );
    // Without a word about it, it is private where there are two parties.
    let known = secret.push(&fleet.hosts[0], &["--tag", "quince-approved"]);
    assert_eq!(known["visibility"], "private", "{known}");
    fs::write(secret.dir.path().join("second-quokka.txt"), "more").unwrap();
    // Whoever pushes the second version has to know of the first.
    knows(&fleet.hosts[1], secret.name);
    let later = secret.push(&fleet.hosts[1], &[]);
    assert_eq!(
        (later["version"].as_u64(), later["visibility"].as_str()),
        (Some(2), Some("private"))
    );
    fs::remove_file(secret.dir.path().join("second-quokka.txt")).unwrap();

    // A worker of the party reads it, though it cannot sign.
    let worker = fleet.host(3).unwrap();
    let said = fleet.hosts[0].mesh(&["ticket", "new", "--worker"]).unwrap();
    worker.join(said.lines().last().unwrap().trim()).unwrap();
    until(SETTLE, || worker.data().join("sealing.key").exists().then_some(()))
        .expect("it can open");
    secret.pull(&worker, &format!("{}@1", secret.name));
    assert!(!worker.data().join("party.key").exists());
    fleet.hosts.push(worker);

    // Somebody in the other party, who was told every id and hash.
    let other = &fleet.hosts[2];
    let runtime = runtime();
    let spy = Attacker::insider(&runtime, &other.ticket().unwrap(), "spy");
    let nodes: Vec<NodeId> = [0, 1, 3, 2].map(|n| spy.meets(&fleet.hosts[n])).into();
    for node in &nodes {
        until(SETTLE, || spy.is_heard(*node).then_some(())).expect("a member is heard");
    }
    let manifest = hex(known["manifest"].as_str().unwrap());
    let mut versions = vec![version(&known), version(&later)];
    versions.push(VersionId(manifest[..16].try_into().unwrap()));
    says_nothing(&spy, &nodes, &versions, 3);
    says_nothing(&spy, &nodes[..1], &versions[..1], 25);

    // Nothing of it stands in what members tell one another, nor in what the other party's node keeps.
    let mut needles = secret.content(&known["manifest"], &fleet.hosts[0]);
    needles.extend(secret.content(&later["manifest"], &fleet.hosts[1]));
    needles.extend(secret.names());
    needles.extend(secret.sizes());
    needles.extend(["quince-approved", "second-quokka"].map(Vec::from));
    assert!(
        found_below(&fleet.hosts[0].data(), &needles).is_some(),
        "the search finds nothing at all"
    );
    let heard: Vec<u8> = nodes[..3].iter().flat_map(|node| overheard(&spy, *node)).collect();
    assert!(heard.len() > 2000, "hardly anything was overheard: {} bytes", heard.len());
    let n = stands_in(&heard, &needles);
    assert_eq!(n.map(|n| String::from_utf8_lossy(&needles[n])), None, "members are told");
    assert_eq!(found_below(&other.data(), &needles), None, "it is known to the other party");

    // That there are records can be seen, and shows that the state was searched.
    for id in [version(&known), version(&later)] {
        assert!(
            found_below(&other.data(), &[id.0.to_vec()]).is_some(),
            "the state was not searched"
        );
    }

    // Its people see nothing, either.
    let (_, all) = get(other, "/v1/data?all=true");
    assert_eq!(all["items"].as_array().unwrap().len(), 0, "{all}");
    let listed = other.mesh(&["data", "ls"]).unwrap();
    assert!(!listed.contains(secret.name), "{listed}");
    is_unknown_by_name(other, &party, secret.name);
    let content = secret.content(&known["manifest"], &fleet.hosts[0]);
    assert_eq!(found_below(&other.data(), &content), None, "after all this asking");
    let used = get(other, "/v1/data/du").1;
    assert_eq!(used["item"]["store_bytes"], 0, "{used}");
    nobody_fell(&fleet.hosts);
}

#[test]
fn what_is_shared_listed_or_open_is_just_that_and_is_taken_back_at_once() {
    let fleet = two_parties();
    let (party, own, other) = (fleet.party.clone(), &fleet.hosts[0], &fleet.hosts[2]);
    let runtime = runtime();
    let spy = Attacker::insider(&runtime, &other.ticket().unwrap(), "spy");
    let node = spy.meets(own);
    let theirs = spy.meets(other);
    until(SETTLE, || (spy.is_heard(node) && spy.is_heard(theirs)).then_some(())).unwrap();
    let names = |host: &Host| -> Vec<String> {
        let all = get(host, "/v1/data").1["items"].as_array().unwrap().clone();
        all.iter().map(|one| one["name"].as_str().unwrap().to_owned()).collect()
    };

    // Listed: name, size and number of files, and nothing that leads further.
    let listed = Secret::new("listed-lynx", ["lynx-inside.bin", "lynx-notes.txt"], 1_234_567, 5);
    let known = listed.push(own, &["--listed"]);
    assert_eq!(known["visibility"], "listed");
    let reference = format!("{party}/{}", listed.name);
    let seen = until(SETTLE, || {
        let (status, body) = get(other, &format!("/v1/data/show?ref={reference}"));
        (status == 200).then(|| body["item"].clone())
    })
    .expect("all see what is listed");
    assert_eq!((seen["bytes"].as_u64(), seen["files"].as_u64()), (Some(listed.bytes()), Some(2)));
    assert_eq!(seen["visibility"], "listed");
    for hidden in ["manifest", "chunks", "objects"] {
        assert!(seen[hidden].is_null(), "{hidden}: {seen}");
    }
    assert!(!try_mesh(other, &["data", "pull", &reference, "--store-only"]).ok());
    let (status, _) = get(other, &format!("/v1/data/diff?from={reference}&to={reference}"));
    assert!((400..500).contains(&status), "{status}");
    says_nothing(&spy, &[node, theirs], &[version(&known)], 3);
    let mut needles = listed.content(&known["manifest"], own);
    needles.extend(listed.files.iter().map(|(path, _)| Vec::from(*path)));
    assert_eq!(found_below(&other.data(), &needles), None, "it is known to the other party");
    // What may be known is found, so that the search is one.
    assert!(found_below(&other.data(), &[listed.name.into()]).is_some(), "the state is searched");

    // Open: everybody reads it.
    let open = Secret::new("open-otter", ["otter.bin", "otter.txt"], 300_000, 6);
    assert_eq!(open.push(own, &["--open"])["visibility"], "open");
    let reference = format!("{party}/{}", open.name);
    until(SETTLE, || names(other).contains(&open.name.to_owned()).then_some(())).unwrap();
    open.pull(other, &reference);

    // Shared: the other party reads it, until it may not; somebody is in the middle of it.
    let shared = Secret::new("shared-shrew", ["shrew.bin", "shrew.txt"], 9_000_000, 7);
    let known = shared.push(own, &["--share", OTHERS]);
    assert_eq!(known["visibility"], "shared");
    let reference = format!("{party}/{}", shared.name);
    until(SETTLE, || names(other).contains(&shared.name.to_owned()).then_some(())).unwrap();
    shared.pull(other, &reference);
    let chunks = known["chunks"].as_u64().unwrap() as u32;
    assert!(chunks >= 3, "{known}");
    let mut pullers = [node, theirs].map(|at| Puller::open(&spy, at, version(&known)));
    for puller in &mut pullers {
        assert!(matches!(puller.next(), Some((Give::Map(_), _))), "what it has comes first");
        assert!(puller.chunk(0).is_some_and(|bytes| !bytes.is_empty()), "it may read");
    }
    own.mesh(&["data", "unshare", shared.name]).unwrap();
    // The node that took it back knows at once; the other party's own node, as soon as it hears.
    assert_eq!(pullers[0].chunk(1), None, "a chunk after it was taken back");
    until(SETTLE, || (!names(other).contains(&shared.name.to_owned())).then_some(())).unwrap();
    assert_eq!(pullers[1].chunk(2), None, "a chunk after it was taken back");
    for mut puller in pullers {
        puller.ask(&Ask::Any(5));
        while let Some((give, _)) = puller.next() {
            assert!(!matches!(give, Give::Chunk { .. }), "{give:?}");
        }
    }
    says_nothing(&spy, &[node, theirs], &[version(&known)], 3);
    is_unknown_by_name(other, &party, shared.name);
    shared.pull(&fleet.hosts[1], shared.name);
    nobody_fell(&fleet.hosts);
}

#[test]
fn who_may_no_longer_read_keeps_nothing_in_its_store_pinned_or_not() {
    let fleet = two_parties_of(Plan::loopback(2).setting("MESH_TEST_WAITS", "short"));
    let (party, own, other) = (fleet.party.clone(), &fleet.hosts[0], &fleet.hosts[2]);
    let shared = Secret::new("pinned-puma", ["puma.bin", "puma.txt"], 2_000_000, 8);
    assert_eq!(shared.push(own, &["--share", OTHERS])["visibility"], "shared");
    let reference = format!("{party}/{}", shared.name);
    shared.pull(other, &reference);
    other.mesh(&["data", "pin", &reference]).unwrap();
    let objects = other.data().join("store/objects");
    assert!(!files_below(&objects).is_empty(), "it has a copy");
    own.mesh(&["data", "unshare", shared.name]).unwrap();
    until(MOVED, || files_below(&objects).is_empty().then_some(()))
        .expect("it keeps what it may not read, and nobody there can unpin it");
    // The others have it still.
    shared.pull(own, shared.name);
    shared.pull(&fleet.hosts[1], shared.name);
    nobody_fell(&fleet.hosts);
}
