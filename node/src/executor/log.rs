//! What an attempt writes, kept in files that turn over.
//!
//! ```text
//! log/7 log/8 log/9       numbers only grow; the oldest goes when there are too many
//!
//! 1763398128123456789 o epoch 1, loss 0.42
//! 1763398128123991001 e warning: no GPU
//! 1763398129000000000 O 37 %|███             the line goes on in the next record of this stream
//! ```
//!
//! A record is one line: when it was read (nanoseconds since 1970, always 19 digits), a letter, the bytes as they came.
//! `o` is standard output, `e` standard error, `m` what mesh itself has to say; a capital letter means that the line
//! was not over. So:
//!
//! - a [`Position`] (file and offset) stays true while files turn over, and whoever reads on needs nothing else;
//! - records are found by time with a binary search, since any newline is the start of a record;
//! - a torn record at the end of a file harms nothing, and `cat` shows a person what there is.
//!
//! [`Writer`] belongs to one process at a time: the supervisor of a process, or the node that follows a container.
//! It never makes an attempt wait: what cannot be written is dropped, counted, and told as soon as there is room.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use serde::{Deserialize, Serialize};
use tokio::net::unix::pipe;

/// Longer lines are kept as several records.
const MAX_TEXT: usize = 16 << 10;
/// So long an unfinished line waits for its end before it is written as it is: progress bars and prompts.
const UNFINISHED: Duration = Duration::from_millis(50);
/// Digits of a time.
const DIGITS: usize = 19;
/// Time, letter, and the spaces after them.
const HEAD: usize = DIGITS + 3;
/// No record is longer, head and newline included.
const MAX_RECORD: usize = HEAD + MAX_TEXT + 1;
/// How much is read at a time.
const BLOCK: usize = 64 << 10;
/// How often a follower looks where the system does not tell it.
const LOOK: Duration = Duration::from_millis(25);

/// How much is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rotation {
    /// A file that is longer is closed.
    pub file_bytes: u64,
    /// How many files there are at most.
    pub files: u64,
}

impl Default for Rotation {
    fn default() -> Self {
        // Fifty megabytes hold the whole story of most runs, and a thousand attempts fit on a disk.
        Self { file_bytes: 10 << 20, files: 5 }
    }
}

/// Where something was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Stream {
    /// Standard output.
    Out,
    /// Standard error.
    Err,
    /// By mesh.
    Note,
}

impl Stream {
    fn letter(self, is_whole: bool) -> u8 {
        let letter = match self {
            Stream::Out => b'o',
            Stream::Err => b'e',
            Stream::Note => b'm',
        };
        if is_whole { letter } else { letter.to_ascii_uppercase() }
    }

    fn of(letter: u8) -> Option<(Self, bool)> {
        let stream = match letter.to_ascii_lowercase() {
            b'o' => Stream::Out,
            b'e' => Stream::Err,
            b'm' => Stream::Note,
            _ => return None,
        };
        Some((stream, letter.is_ascii_lowercase()))
    }
}

/// A line, or a part of one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    /// When it was read, in nanoseconds since 1970.
    pub at: u64,
    /// Where it was written.
    pub stream: Stream,
    /// Without the newline.
    pub text: Vec<u8>,
    /// Whether there was a newline; if not, it goes on.
    pub is_whole: bool,
}

impl Line {
    fn parse(record: &[u8]) -> Option<Self> {
        let (head, text) = record.split_at_checked(HEAD)?;
        let (digits, rest) = head.split_at(DIGITS);
        let [b' ', letter, b' '] = rest else { return None };
        let at = std::str::from_utf8(digits).ok()?.parse().ok()?;
        let (stream, is_whole) = Stream::of(*letter)?;
        Some(Self { at, stream, text: text.to_vec(), is_whole })
    }

    fn put(at: u64, stream: Stream, text: &[u8], is_whole: bool, into: &mut Vec<u8>) {
        // Writing into memory does not fail.
        let _ = write!(into, "{at:0DIGITS$} {} ", char::from(stream.letter(is_whole)));
        into.extend_from_slice(text);
        into.push(b'\n');
    }
}

/// Adds to a log.
#[derive(Debug)]
pub struct Writer {
    dir: PathBuf,
    rotation: Rotation,
    number: u64,
    /// `None` until there is something to write.
    file: Option<File>,
    size: u64,
    /// The last record was cut short: the next begins on a line of its own.
    is_torn: bool,
    /// Bytes that could not be written.
    dropped: u64,
    /// Records that are about to be written, at one go.
    pending: Vec<u8>,
}

impl Writer {
    /// Goes on with the log in `dir`, which is made if it is not there.
    pub fn open(dir: impl Into<PathBuf>, rotation: Rotation) -> io::Result<Self> {
        let dir = dir.into();
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&dir)?;
        let number = numbers(&dir)?.last().copied().unwrap_or(0);
        let mut writer = Self {
            dir,
            rotation,
            number,
            file: None,
            size: 0,
            is_torn: false,
            dropped: 0,
            pending: Vec::new(),
        };
        writer.is_torn = match File::open(writer.path()) {
            Ok(mut file) => {
                writer.size = file.metadata()?.len();
                writer.size > 0 && !ends_well(&mut file)?
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => false,
            Err(error) => return Err(error),
        };
        Ok(writer)
    }

    /// Adds a line, or a part of one. It is written with the next [`flush`](Self::flush).
    pub fn add(&mut self, at: u64, stream: Stream, text: &[u8], is_whole: bool) {
        let mut parts = text.chunks(MAX_TEXT).peekable();
        if parts.peek().is_none() {
            Line::put(at, stream, b"", is_whole, &mut self.pending);
        }
        while let Some(part) = parts.next() {
            let is_last = parts.peek().is_none();
            Line::put(at, stream, part, is_whole && is_last, &mut self.pending);
        }
    }

    /// Writes what was added. What cannot be written is gone; the log says so as soon as it can.
    pub fn flush(&mut self) {
        if self.pending.is_empty() {
            return;
        }
        let mut bytes = std::mem::take(&mut self.pending);
        if self.dropped > 0 {
            let note = format!("{} bytes could not be written here", self.dropped);
            let mut first = Vec::new();
            Line::put(crate::clock::nanos(), Stream::Note, note.as_bytes(), true, &mut first);
            bytes.splice(0..0, first);
        }
        if self.is_torn {
            bytes.insert(0, b'\n');
        }
        match self.write(&bytes) {
            Ok(()) => (self.is_torn, self.dropped) = (false, 0),
            Err(_) => {
                self.is_torn = true;
                self.dropped = self.dropped.saturating_add(bytes.len() as u64);
            }
        }
        bytes.clear();
        self.pending = bytes;
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.size >= self.rotation.file_bytes {
            self.file = None;
            self.number += 1;
            self.size = 0;
        }
        let file = match &mut self.file {
            Some(file) => file,
            none => {
                let path = self.dir.join(self.number.to_string());
                let mut options = File::options();
                let file = options.append(true).create(true).mode(0o600).open(path)?;
                // Only now that the next one is there: a reader that comes to an end finds it.
                for old in numbers(&self.dir)? {
                    if old + self.rotation.files.max(1) <= self.number {
                        // One that stays is tried again when the next file is begun.
                        let _ = fs::remove_file(self.dir.join(old.to_string()));
                    }
                }
                none.insert(file)
            }
        };
        let written = file.write_all(bytes);
        // Asked, since a write that failed may have been done in part.
        self.size = file.metadata()?.len();
        written
    }

    fn path(&self) -> PathBuf {
        self.dir.join(self.number.to_string())
    }
}

/// Makes records of what two streams bring in pieces.
#[derive(Debug)]
pub struct Splitter {
    writer: Writer,
    /// What has come of a line that is not over, and since when; for standard output and standard error.
    open: [(Vec<u8>, Option<Instant>); 2],
    /// Times in one log do not go back, even if the clock does.
    last: u64,
}

impl Splitter {
    /// Before a log.
    pub fn new(writer: Writer) -> Self {
        Self { writer, open: Default::default(), last: 0 }
    }

    /// Takes what was read, and writes the lines that are over.
    pub fn push(&mut self, now: Instant, stream: Stream, mut bytes: &[u8]) {
        let at = self.at();
        let (held, since) = &mut self.open[slot(stream)];
        while let Some(end) = bytes.iter().position(|byte| *byte == b'\n') {
            let (line, rest) = bytes.split_at(end);
            if held.is_empty() {
                self.writer.add(at, stream, line, true);
            } else {
                held.extend_from_slice(line);
                self.writer.add(at, stream, held, true);
                held.clear();
            }
            *since = None;
            bytes = &rest[1..];
        }
        if !bytes.is_empty() {
            held.extend_from_slice(bytes);
            since.get_or_insert(now);
        }
        if held.len() >= MAX_TEXT {
            self.writer.add(at, stream, held, false);
            held.clear();
            *since = None;
        }
        self.writer.flush();
    }

    /// Adds a word of mesh's own.
    pub fn note(&mut self, text: &str) {
        let at = self.at();
        self.writer.add(at, Stream::Note, text.as_bytes(), true);
        self.writer.flush();
    }

    /// When a line that is not over has waited long enough.
    pub fn due(&self) -> Option<Instant> {
        let since = self.open.iter().filter_map(|(_, since)| *since).min()?;
        Some(since + UNFINISHED)
    }

    /// Writes lines that are not over, if they have waited long enough.
    pub fn write_due(&mut self, now: Instant) {
        self.write_open(|since| since + UNFINISHED <= now);
    }

    /// Writes all that is left.
    pub fn finish(&mut self) {
        self.write_open(|_| true);
    }

    fn write_open(&mut self, is_due: impl Fn(Instant) -> bool) {
        let at = self.at();
        for stream in [Stream::Out, Stream::Err] {
            let (held, since) = &mut self.open[slot(stream)];
            if since.is_some_and(&is_due) {
                self.writer.add(at, stream, held, false);
                held.clear();
                *since = None;
            }
        }
        self.writer.flush();
    }

    fn at(&mut self) -> u64 {
        self.last = self.last.max(crate::clock::nanos());
        self.last
    }
}

fn slot(stream: Stream) -> usize {
    usize::from(stream == Stream::Err)
}

/// A place in a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
pub struct Position {
    /// Which file.
    pub file: u64,
    /// How far into it.
    pub offset: u64,
}

/// Reads a log, also while it is written.
#[derive(Debug)]
pub struct Reader {
    dir: PathBuf,
    at: Position,
    open: Option<(u64, File)>,
}

impl Reader {
    /// From a place on, which an earlier reader was at; `Position::default()` is the beginning.
    pub fn new(dir: impl Into<PathBuf>, at: Position) -> Self {
        Self { dir: dir.into(), at, open: None }
    }

    /// From the first record on that is not older than this, in milliseconds since 1970.
    pub fn since(dir: impl Into<PathBuf>, since_ms: u64) -> io::Result<Self> {
        let dir = dir.into();
        let since = since_ms.saturating_mul(1_000_000);
        let mut at = Position::default();
        for number in numbers(&dir)?.into_iter().rev() {
            let mut file = match File::open(dir.join(number.to_string())) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => break,
                file => file?,
            };
            at = Position { file: number, offset: search(&mut file, since)? };
            if at.offset > 0 {
                break;
            }
        }
        Ok(Self::new(dir, at))
    }

    /// The last so many lines.
    pub fn last(dir: impl Into<PathBuf>, lines: u64) -> io::Result<Self> {
        let dir = dir.into();
        let mut left = lines;
        let mut at = Position::default();
        for number in numbers(&dir)?.into_iter().rev() {
            let mut file = match File::open(dir.join(number.to_string())) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => break,
                file => file?,
            };
            let (offset, found) = backwards(&mut file, left)?;
            at = Position { file: number, offset };
            left -= found;
            if left == 0 {
                break;
            }
        }
        Ok(Self::new(dir, at))
    }

    /// Where it is.
    pub fn position(&self) -> Position {
        self.at
    }

    /// The next lines; none if there are no more for now. A file that was thrown away meanwhile is passed over.
    pub fn read(&mut self) -> io::Result<Vec<Line>> {
        loop {
            // Looked for before the end of this file is: once there is another, nothing is added to this one.
            let next = numbers(&self.dir)?.into_iter().find(|number| *number > self.at.file);
            let (lines, bytes) = self.read_here()?;
            self.at.offset += bytes;
            if !lines.is_empty() {
                return Ok(lines);
            }
            if bytes > 0 {
                continue;
            }
            let Some(next) = next else { return Ok(lines) };
            self.at = Position { file: next, offset: 0 };
        }
    }

    /// Records of the file at hand, and how many bytes they take.
    fn read_here(&mut self) -> io::Result<(Vec<Line>, u64)> {
        let file = match &mut self.open {
            Some((number, file)) if *number == self.at.file => file,
            other => match File::open(self.dir.join(self.at.file.to_string())) {
                Ok(file) => &mut other.insert((self.at.file, file)).1,
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    return Ok((Vec::new(), 0));
                }
                Err(error) => return Err(error),
            },
        };
        file.seek(SeekFrom::Start(self.at.offset))?;
        let mut block = Vec::with_capacity(BLOCK);
        file.take(BLOCK as u64).read_to_end(&mut block)?;
        // The last record may be half written; one that is longer than any of ours is not a record.
        let end = match block.iter().rposition(|byte| *byte == b'\n') {
            Some(end) => end + 1,
            None if block.len() > MAX_RECORD => block.len(),
            None => 0,
        };
        let records = block[..end].split(|byte| *byte == b'\n');
        Ok((records.filter_map(Line::parse).collect(), end as u64))
    }
}

/// Reads a log, and waits for more.
#[derive(Debug)]
pub struct Follower {
    reader: Reader,
    /// Wakes when something in the directory changes; `None` if the system has no more of these to give.
    watch: Option<pipe::Receiver>,
}

impl Follower {
    /// Goes on where a reader is. The directory must be there.
    pub fn new(reader: Reader) -> Self {
        let watch = || -> io::Result<pipe::Receiver> {
            let fd = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
            inotify::add_watch(&fd, &reader.dir, WatchFlags::MODIFY | WatchFlags::CREATE)?;
            // Not a pipe, but it is read like one.
            pipe::Receiver::from_file_unchecked(File::from(fd))
        };
        Self { watch: watch().ok(), reader }
    }

    /// Where it is.
    pub fn position(&self) -> Position {
        self.reader.position()
    }

    /// The next lines, as soon as there are any. To be dropped when the attempt is over and [`rest`](Self::rest) was read.
    pub async fn read(&mut self) -> io::Result<Vec<Line>> {
        loop {
            let lines = self.reader.read()?;
            if !lines.is_empty() {
                return Ok(lines);
            }
            let Some(watch) = &self.watch else {
                tokio::time::sleep(LOOK).await;
                continue;
            };
            watch.readable().await?;
            // What has happened does not matter; that it has been heard does.
            let mut events = [0; 4096];
            while watch.try_read(&mut events).is_ok_and(|bytes| bytes > 0) {}
        }
    }

    /// What there is, without waiting.
    pub fn rest(&mut self) -> io::Result<Vec<Line>> {
        self.reader.read()
    }
}

/// When the last records of standard output and standard error were written; 0 if there are none. A log that was
/// interrupted is continued after these.
pub(super) fn last_times(dir: &Path) -> io::Result<[u64; 2]> {
    let mut last = [0; 2];
    for number in numbers(dir)?.into_iter().rev() {
        let mut reader = Reader::new(dir, Position { file: number, offset: 0 });
        loop {
            let (lines, bytes) = reader.read_here()?;
            reader.at.offset += bytes;
            if bytes == 0 {
                break;
            }
            for line in lines.iter().filter(|line| line.stream != Stream::Note) {
                let time = &mut last[slot(line.stream)];
                *time = line.at.max(*time);
            }
        }
        // Older files are looked into only for a stream that the newer ones do not have.
        if last.iter().all(|time| *time > 0) {
            break;
        }
    }
    Ok(last)
}

/// The files of a log, in order.
fn numbers(dir: &Path) -> io::Result<Vec<u64>> {
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let names = entries.filter_map(Result::ok).map(|entry| entry.file_name());
    let mut numbers: Vec<u64> = names.filter_map(|name| name.to_str()?.parse().ok()).collect();
    numbers.sort_unstable();
    Ok(numbers)
}

fn ends_well(file: &mut File) -> io::Result<bool> {
    file.seek(SeekFrom::End(-1))?;
    let mut last = [0];
    file.read_exact(&mut last)?;
    Ok(last == *b"\n")
}

/// Where the first record begins that is not older than `since`.
fn search(file: &mut File, since: u64) -> io::Result<u64> {
    let (mut low, mut high) = (0, file.metadata()?.len());
    // All that begins before `low` is older; what begins at `high` or later is not.
    while low < high {
        let middle = low + (high - low) / 2;
        let Some((start, next, at)) = record_after(file, middle, high)? else {
            high = middle;
            continue;
        };
        if at < since {
            low = next;
        } else if middle == low || start == low {
            return Ok(start);
        } else {
            high = middle;
        }
    }
    Ok(low)
}

/// The first record that begins at `from` or later and before `end`: its start, the start of the next one, its time.
fn record_after(file: &mut File, from: u64, end: u64) -> io::Result<Option<(u64, u64, u64)>> {
    // One byte earlier, to see whether a record begins just here.
    let mut at = from.saturating_sub(1);
    file.seek(SeekFrom::Start(at))?;
    let mut block = Vec::with_capacity(2 * MAX_RECORD);
    file.take(2 * MAX_RECORD as u64).read_to_end(&mut block)?;
    let mut rest = &block[..];
    if from > 0 {
        let Some(newline) = rest.iter().position(|byte| *byte == b'\n') else { return Ok(None) };
        rest = &rest[newline + 1..];
        at += newline as u64 + 1;
    }
    while let Some(newline) = rest.iter().position(|byte| *byte == b'\n') {
        if at >= end {
            return Ok(None);
        }
        let next = at + newline as u64 + 1;
        if let Some(line) = Line::parse(&rest[..newline]) {
            return Ok(Some((at, next, line.at)));
        }
        (at, rest) = (next, &rest[newline + 1..]);
    }
    Ok(None)
}

/// Where the last `wanted` lines of a file begin, and how many that are.
fn backwards(file: &mut File, wanted: u64) -> io::Result<(u64, u64)> {
    let mut end = file.metadata()?.len();
    // Counts ends of whole lines: the first of them ends the line before those that are wanted.
    let mut found = 0;
    let mut start_of_kept = end;
    while end > 0 {
        let begin = end.saturating_sub(BLOCK as u64);
        let mut block = vec![0; usize::try_from(end - begin).unwrap_or(BLOCK)];
        file.seek(SeekFrom::Start(begin))?;
        file.read_exact(&mut block)?;
        // Starts of records in this block, from the last to the first.
        let starts = (0..block.len()).rev().filter(|&i| match i {
            0 => begin == 0,
            i => block[i - 1] == b'\n',
        });
        for start in starts.map(|i| begin + i as u64).collect::<Vec<_>>() {
            if start >= start_of_kept {
                continue;
            }
            if is_whole_at(file, start)? {
                if found == wanted {
                    return Ok((start_of_kept, found));
                }
                found += 1;
            }
            start_of_kept = start;
        }
        // One byte is read twice, to see whether a record begins at the edge.
        end = if begin == 0 { 0 } else { begin + 1 };
    }
    Ok((0, found))
}

/// Whether the record that begins here ends a line.
fn is_whole_at(file: &mut File, start: u64) -> io::Result<bool> {
    let mut letter = [0];
    file.seek(SeekFrom::Start(start + DIGITS as u64 + 1))?;
    Ok(file.read(&mut letter)? == 1 && letter[0].is_ascii_lowercase())
}

#[cfg(test)]
mod tests;
