//! A worker that trains nothing and returns other bytes than it was given: every value times 1 and a little more, so that no
//! upload can be left out, as none could be after real training. It speaks docs/worker-protocol.md.
//!
//! Parameters: `megabytes` is the size of the model, of which the first round makes ten tensors.

use std::env;
use std::error::Error;
use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, BufWriter, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

const TENSORS: usize = 10;
/// Bytes that are read, changed and written at a time: they stay in the processor's cache.
const BLOCK: usize = 256 << 10;
/// Before it is asked again, if there was nothing to do.
const BREATH: Duration = Duration::from_millis(20);
/// The name under which updates are written: the node has read the one before when the next is begun.
const OUT: &str = "out.safetensors";

type Result<T> = std::result::Result<T, Box<dyn Error>>;

fn main() -> Result<()> {
    let tensors = PathBuf::from(env::var("MESH_TENSORS")?);
    let megabytes: usize = env::var("MESH_PARAM_MEGABYTES")?.parse()?;
    let mut node = Node::connect()?;
    node.ask("POST", "/v1/join", r#"{"protocol": 1}"#)?;
    let mut random = Random(u64::from(std::process::id()) << 20 | 1);
    let mut after: Option<u64> = None;
    loop {
        let path = after.map_or("/v1/next".to_owned(), |after| format!("/v1/next?after={after}"));
        let told = node.ask("GET", &path, "")?;
        match text(&told, "state").as_deref() {
            Some("done") => return Ok(()),
            Some("round") => {}
            _ => {
                thread::sleep(BREATH);
                continue;
            }
        }
        let round = number(&told, "round").ok_or("a round without a number")?;
        match text(&told, "model") {
            Some(model) => change(&tensors, &model, 1.0 + random.next() * 1e-3)?,
            None => begin(&tensors, megabytes * 250_000, &mut random)?,
        }
        let body =
            format!(r#"{{"round": {round}, "update": "{OUT}", "examples": 1, "metrics": {{}}}}"#);
        node.ask("POST", "/v1/submit", &body)?;
        after = Some(round);
    }
}

/// Makes the first model.
fn begin(dir: &Path, values: usize, random: &mut Random) -> Result<()> {
    let each = values / TENSORS;
    let tensor = |n: usize| {
        let (from, to) = (4 * each * n, 4 * each * (n + 1));
        format!(r#""t{n}":{{"dtype":"F32","shape":[{each}],"data_offsets":[{from},{to}]}}"#)
    };
    let tensors: Vec<String> = (0..TENSORS).map(tensor).collect();
    let mut header = format!("{{{}}}", tensors.join(","));
    while header.len() % 8 != 0 {
        header.push(' ');
    }
    let mut file = BufWriter::with_capacity(BLOCK, File::create(dir.join(OUT))?);
    file.write_all(&(header.len() as u64).to_le_bytes())?;
    file.write_all(header.as_bytes())?;
    for _ in 0..each * TENSORS {
        file.write_all(&(random.next() - 0.5).to_le_bytes())?;
    }
    Ok(file.flush()?)
}

/// Writes a model again, every value times this.
fn change(dir: &Path, model: &str, factor: f32) -> Result<()> {
    let mut from = File::open(dir.join(model))?;
    // In place of what was written before: memory that is there already need not be asked for again.
    let mut to =
        fs::OpenOptions::new().write(true).create(true).truncate(false).open(dir.join(OUT))?;
    let mut length = [0; 8];
    from.read_exact(&mut length)?;
    let mut header = vec![0; usize::try_from(u64::from_le_bytes(length))?];
    from.read_exact(&mut header)?;
    to.write_all(&length)?;
    to.write_all(&header)?;
    let mut block = vec![0; BLOCK];
    let mut written = (length.len() + header.len()) as u64;
    loop {
        let filled = fill(&mut from, &mut block)?;
        if filled == 0 {
            break;
        }
        let (words, _) = block[..filled].as_chunks_mut::<4>();
        for word in words {
            *word = (f32::from_le_bytes(*word) * factor).to_le_bytes();
        }
        to.write_all(&block[..filled])?;
        written += filled as u64;
    }
    Ok(to.set_len(written)?)
}

/// Reads until a block is full or the file ends.
fn fill(from: &mut File, block: &mut [u8]) -> Result<usize> {
    let mut filled = 0;
    while filled < block.len() {
        match from.read(&mut block[filled..])? {
            0 => break,
            more => filled += more,
        }
    }
    Ok(filled)
}

/// The node beside it. Whoever is not answered ends: in a benchmark no node restarts.
struct Node(BufReader<UnixStream>);

impl Node {
    fn connect() -> Result<Self> {
        Ok(Self(BufReader::new(UnixStream::connect(env::var("MESH_SOCKET")?)?)))
    }

    /// The body of the answer.
    fn ask(&mut self, method: &str, path: &str, body: &str) -> Result<String> {
        let request = format!(
            "{method} {path} HTTP/1.1\r\nhost: mesh\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        self.0.get_mut().write_all(request.as_bytes())?;
        let mut status = String::new();
        self.0.read_line(&mut status)?;
        let mut length = 0;
        loop {
            let mut line = String::new();
            if self.0.read_line(&mut line)? == 0 {
                return Err("the node hung up".into());
            }
            let line = line.trim();
            if line.is_empty() {
                break;
            }
            if let Some((name, value)) = line.split_once(':')
                && name.eq_ignore_ascii_case("content-length")
            {
                length = value.trim().parse()?;
            }
        }
        let mut answer = vec![0; length];
        self.0.read_exact(&mut answer)?;
        let answer = String::from_utf8(answer)?;
        match status.split(' ').nth(1) {
            Some("200") => Ok(answer),
            _ => Err(format!("{method} {path}: {} {answer}", status.trim()).into()),
        }
    }
}

/// What follows a key in an object of few and simple fields.
fn field<'a>(json: &'a str, key: &str) -> Option<&'a str> {
    let (_, rest) = json.split_once(&format!("\"{key}\""))?;
    let rest = rest.trim_start().strip_prefix(':')?.trim_start();
    Some(&rest[..rest.find([',', '}']).unwrap_or(rest.len())])
}

fn text(json: &str, key: &str) -> Option<String> {
    field(json, key)?.trim().strip_prefix('"')?.strip_suffix('"').map(str::to_owned)
}

fn number(json: &str, key: &str) -> Option<u64> {
    field(json, key)?.trim().parse().ok()
}

/// Numbers that nobody has to foresee: xorshift.
struct Random(u64);

impl Random {
    /// From 0 to 1.
    fn next(&mut self) -> f32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 40) as f32 / (1u64 << 24) as f32
    }
}
