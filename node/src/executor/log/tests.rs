use super::*;
use crate::clock::steady;

const SMALL: Rotation = Rotation { file_bytes: 300, files: 3 };

fn all(reader: &mut Reader) -> Vec<Line> {
    let mut lines = Vec::new();
    loop {
        let more = reader.read().unwrap();
        if more.is_empty() {
            return lines;
        }
        lines.extend(more);
    }
}

fn texts(reader: &mut Reader) -> Vec<String> {
    all(reader).into_iter().map(|line| String::from_utf8(line.text).unwrap()).collect()
}

fn write(writer: &mut Writer, times: std::ops::Range<u64>) {
    for time in times {
        writer.add(time * 1_000_000, Stream::Out, format!("line {time}").as_bytes(), true);
        writer.flush();
    }
}

#[test]
fn streams_are_told_apart_and_come_in_order() {
    let dir = tempfile::tempdir().unwrap();
    let writer = Writer::open(dir.path(), Rotation::default()).unwrap();
    let mut splitter = Splitter::new(writer);
    let now = steady();
    splitter.push(now, Stream::Out, b"one\ntw");
    splitter.push(now, Stream::Err, b"three\n\xff\xfe\r\n");
    splitter.push(now, Stream::Out, b"o\n\n");
    splitter.note("five");
    let lines = all(&mut Reader::new(dir.path(), Position::default()));
    let seen: Vec<(Stream, &[u8])> = lines.iter().map(|line| (line.stream, &*line.text)).collect();
    let expected: [(Stream, &[u8]); 6] = [
        (Stream::Out, b"one"),
        (Stream::Err, b"three"),
        (Stream::Err, b"\xff\xfe\r"),
        (Stream::Out, b"two"),
        (Stream::Out, b""),
        (Stream::Note, b"five"),
    ];
    assert_eq!(seen, expected);
    assert!(lines.iter().all(|line| line.is_whole));
    assert!(lines.is_sorted_by_key(|line| line.at));
}

#[test]
fn a_line_that_does_not_end_is_seen_all_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let mut splitter = Splitter::new(Writer::open(dir.path(), Rotation::default()).unwrap());
    let mut reader = Reader::new(dir.path(), Position::default());
    let now = steady();
    assert_eq!(splitter.due(), None);
    splitter.push(now, Stream::Out, b"37 %");
    assert!(all(&mut reader).is_empty(), "it may end soon");
    let due = splitter.due().unwrap();
    splitter.write_due(due);
    assert_eq!(splitter.due(), None);
    splitter.push(due, Stream::Out, b" 38 %\n");
    splitter.push(due, Stream::Err, b"the end");
    splitter.finish();
    let lines = all(&mut reader);
    let seen: Vec<(&[u8], bool)> = lines.iter().map(|line| (&*line.text, line.is_whole)).collect();
    assert_eq!(seen, [(&b"37 %"[..], false), (b" 38 %", true), (b"the end", false)]);
}

#[test]
fn a_long_line_is_kept_in_parts() {
    let dir = tempfile::tempdir().unwrap();
    let mut splitter = Splitter::new(Writer::open(dir.path(), Rotation::default()).unwrap());
    let long = vec![b'x'; 5 * MAX_TEXT + 7];
    for part in long.chunks(1000) {
        splitter.push(steady(), Stream::Out, part);
    }
    splitter.push(steady(), Stream::Out, b"\n");
    let lines = all(&mut Reader::new(dir.path(), Position::default()));
    assert!(lines.iter().all(|line| line.text.len() <= MAX_TEXT));
    let (last, others) = lines.split_last().unwrap();
    assert!(last.is_whole && others.iter().all(|line| !line.is_whole));
    assert_eq!(lines.iter().map(|line| line.text.len()).sum::<usize>(), long.len());
}

#[test]
fn old_files_go_and_a_place_stays_true() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = Writer::open(dir.path(), SMALL).unwrap();
    write(&mut writer, 0..5);
    let mut early = Reader::new(dir.path(), Position::default());
    assert_eq!(texts(&mut early).len(), 5);
    let place = early.position();
    write(&mut writer, 5..100);
    let files = numbers(dir.path()).unwrap();
    assert_eq!(files.len(), 3);
    assert!(files[0] > 0);
    for number in &files {
        let size = fs::metadata(dir.path().join(number.to_string())).unwrap().len();
        assert!(size < SMALL.file_bytes + 100, "{size}");
    }
    // Whoever was in a file that is gone goes on with the oldest that is there.
    let rest = texts(&mut Reader::new(dir.path(), place));
    assert_eq!(rest.last().unwrap(), "line 99");
    assert_eq!(rest, texts(&mut Reader::new(dir.path(), Position::default())));
    // One that still has it open reads it to its end.
    assert!(texts(&mut early).len() > rest.len());
}

#[test]
fn what_is_written_later_is_found_later() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = Writer::open(dir.path(), SMALL).unwrap();
    let mut reader = Reader::new(dir.path(), Position::default());
    let mut seen = Vec::new();
    for time in 0..50 {
        write(&mut writer, time..time + 1);
        seen.extend(texts(&mut reader));
        reader = Reader::new(dir.path(), reader.position());
    }
    let expected: Vec<String> = (0..50).map(|time| format!("line {time}")).collect();
    assert_eq!(seen, expected);
}

#[test]
fn lines_are_found_by_time() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = Writer::open(dir.path(), Rotation { file_bytes: 1000, files: 100 }).unwrap();
    // Two of each time, and lines of all lengths.
    for time in (0..200).flat_map(|time| [time, time]) {
        let text = "x".repeat(usize::try_from(time * 7 % 61).unwrap());
        writer.add(time * 1_000_000, Stream::Out, text.as_bytes(), true);
        writer.flush();
    }
    assert!(numbers(dir.path()).unwrap().len() > 5);
    for since in 0..=200 {
        let mut reader = Reader::since(dir.path(), since).unwrap();
        let times: Vec<u64> = all(&mut reader).iter().map(|line| line.at / 1_000_000).collect();
        let expected: Vec<u64> = (since..200).flat_map(|time| [time, time]).collect();
        assert_eq!(times, expected, "since {since}");
    }
    let mut none = Reader::since(dir.path().join("absent"), 0).unwrap();
    assert!(all(&mut none).is_empty());
}

#[test]
fn the_last_lines_are_found() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = Writer::open(dir.path(), Rotation { file_bytes: 500, files: 100 }).unwrap();
    for time in 0..60 {
        writer.add(time, Stream::Out, b"a part, ", false);
        writer.add(time, Stream::Out, format!("line {time}").as_bytes(), true);
        writer.flush();
    }
    for wanted in [0, 1, 2, 7, 59, 60, 100] {
        let mut reader = Reader::last(dir.path(), wanted).unwrap();
        let lines = texts(&mut reader);
        let kept = wanted.min(60);
        let expected: Vec<String> = (60 - kept..60)
            .flat_map(|time| ["a part, ".to_owned(), format!("line {time}")])
            .collect();
        assert_eq!(lines, expected, "last {wanted}");
    }
}

#[test]
fn the_last_lines_of_a_long_file_are_found() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = Writer::open(dir.path(), Rotation::default()).unwrap();
    write(&mut writer, 0..20_000);
    for wanted in [1, 3000, 19_999, 20_000, 20_001] {
        let lines = texts(&mut Reader::last(dir.path(), wanted).unwrap());
        assert_eq!(lines.len() as u64, wanted.min(20_000));
        assert_eq!(lines.last().unwrap(), "line 19999");
    }
}

#[test]
fn a_torn_end_harms_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = Writer::open(dir.path(), Rotation::default()).unwrap();
    write(&mut writer, 1..3);
    let path = dir.path().join("0");
    let mut bytes = fs::read(&path).unwrap();
    bytes.truncate(bytes.len() - 4);
    fs::write(&path, &bytes).unwrap();
    assert_eq!(texts(&mut Reader::new(dir.path(), Position::default())), ["line 1"]);
    let mut writer = Writer::open(dir.path(), Rotation::default()).unwrap();
    write(&mut writer, 3..4);
    let lines = texts(&mut Reader::new(dir.path(), Position::default()));
    assert_eq!(lines, ["line 1", "lin", "line 3"]);
    // Bytes of somebody else are passed over, also many of them.
    fs::write(&path, vec![b'z'; 5 * BLOCK]).unwrap();
    assert!(texts(&mut Reader::new(dir.path(), Position::default())).is_empty());
    assert_eq!(Reader::since(dir.path(), 5).unwrap().position().file, 0);
}

#[test]
fn what_could_not_be_written_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = Writer::open(dir.path(), Rotation::default()).unwrap();
    // A directory where the file should be: it cannot be opened.
    fs::create_dir(dir.path().join("0")).unwrap();
    write(&mut writer, 0..10);
    fs::remove_dir(dir.path().join("0")).unwrap();
    write(&mut writer, 10..11);
    let lines = texts(&mut Reader::new(dir.path(), Position::default()));
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert!(lines[0].ends_with("bytes could not be written here"), "{lines:?}");
    assert_eq!(lines[1], "line 10");
}

#[test]
fn an_interrupted_log_knows_where_it_stopped() {
    let dir = tempfile::tempdir().unwrap();
    assert_eq!(last_times(dir.path()).unwrap(), [0, 0]);
    let mut writer = Writer::open(dir.path(), SMALL).unwrap();
    writer.add(5, Stream::Err, b"e", true);
    writer.flush();
    write(&mut writer, 1..12);
    writer.add(u64::MAX / 2, Stream::Note, b"m", true);
    writer.flush();
    assert_eq!(last_times(dir.path()).unwrap(), [11_000_000, 5]);
}

#[tokio::test]
async fn a_follower_hears_of_new_lines_and_new_files() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = Writer::open(dir.path(), SMALL).unwrap();
    let mut follower = Follower::new(Reader::new(dir.path(), Position::default()));
    let writing = tokio::task::spawn_blocking(move || {
        for time in 0..40 {
            std::thread::sleep(Duration::from_millis(1));
            write(&mut writer, time..time + 1);
        }
    });
    let mut seen = Vec::new();
    while seen.last().is_none_or(|line: &Line| line.text != b"line 39") {
        let more = tokio::time::timeout(Duration::from_secs(20), follower.read()).await;
        seen.extend(more.expect("it was told").unwrap());
    }
    assert_eq!(seen.len(), 40);
    writing.await.unwrap();
    assert!(follower.rest().unwrap().is_empty());
}
