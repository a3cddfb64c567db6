use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

use clap::Parser;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::carry::{absolute, no_room, pulled, pushed, unacknowledged, verified};
use super::change::{TAKEN_BACK, readers};
use super::flow::{Line, Progress, is_wanted, rate, read};
use super::show::{Look, copies};
use super::{PUSH, UNSHARE, diff, list, show};
use crate::answers::{Dataset, Diff, Usage, Verified};
use crate::args::Args;
use crate::report::Code;
use crate::view::{Paint, millis};

const WIDTHS: [usize; 2] = [60, 120];

fn now_ms() -> u64 {
    millis("2026-11-16T12:00:00Z").unwrap()
}

fn look(width: usize, utf8: bool) -> Look {
    Look { width: Some(width), paint: Paint(false), utf8, now_ms: now_ms() }
}

fn parsed<T: DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

fn mnist() -> Value {
    json!({
        "name": "mnist", "version": 3, "manifest": "ab".repeat(32), "party": "lab", "visibility": "shared",
        "bytes": 11_639_193u64, "files": 70, "copies": 2, "copies_wanted": 3, "mine": true, "here": "whole",
        "created_at": "2026-11-16T11:55:00Z", "id": "cd".repeat(16), "tags": ["clean", "v1.0"],
        "readers": ["clinic-a", "clinic-b"], "chunks": 14, "objects": 3, "author": "alpha", "note": "deskewed",
        "lineage": { "job": "prep-7", "inputs": ["mnist@2"] }, "acknowledged": true,
        "holders": [
            { "id": "1", "name": "alpha", "party": "lab", "state": "up", "holds": "durable", "bytes": 11_639_193u64 },
            { "id": "2", "name": "beta", "party": "lab", "state": "down", "holds": "durable", "bytes": 11_639_193u64 },
            { "id": "3", "name": "gamma\u{1b}[2J", "party": "lab", "state": "up", "holds": "pulling", "bytes": 4_655_678u64 },
            { "id": "4444444444", "name": null, "party": "clinic-a", "state": "up", "holds": "cached", "bytes": 1 },
        ],
    })
}

fn several() -> Vec<Dataset> {
    let listed = json!({
        "name": "chest-x-rays-of-the-northern-clinics", "version": 12, "manifest": null, "party": "clinic-a",
        "visibility": "listed", "bytes": null, "files": null, "copies": null, "copies_wanted": null,
        "created_at": "2026-11-14T11:00:00Z", "id": "ef".repeat(16), "tags": [], "mine": false, "here": "none",
    });
    let lost = json!({
        "name": "tmp", "version": 1, "party": "lab", "visibility": "private", "bytes": 5, "files": 1, "copies": 0,
        "copies_wanted": 1, "created_at": "2026-11-16T11:59:59.5Z", "mine": true,
    });
    parsed(json!([mnist(), listed, lost]))
}

#[test]
fn every_way_to_speak_of_data_is_understood() {
    for line in [
        "push ./x",
        "push ./x --name x --share a --share b --copies 2 --in-place --follow --tag t --no-wait",
        "push x --open",
        "push x --copies 16",
        "push x --listed --share a",
        "pull x",
        "pull a/x@3 ./d --writable --wait 5m",
        "pull each/x:t --store-only",
        "pull x --store-only --dir /node",
        "pull x ./d --dir /node",
        "ls",
        "ls --all --party lab",
        "show lab/x:t",
        "log lab/x",
        "diff x@1 x",
        "tag x@3 t",
        "tag x@3 t --expect 2",
        "tag x@3 t --expect none",
        "tag x t --rm",
        "share x@3 a b",
        "share x --open",
        "share x --listed",
        "unshare x",
        "unshare x@3 a b",
        "pin x@3",
        "pin x --off",
        "rm x@3",
        "rm x --all --yes",
        "verify x",
        "du",
    ] {
        let words = ["mesh", "data"].into_iter().chain(line.split(' '));
        Args::try_parse_from(words).unwrap_or_else(|error| panic!("{line}: {error}"));
    }
    for line in [
        "push",
        "push x --name X",
        "push x --open --share a",
        "push x --open --listed",
        "push x --copies 0",
        "push x --copies 17",
        "pull",
        "pull x d --store-only",
        "pull x --store-only --writable",
        "pull ../x",
        "log x@3",
        "diff x",
        "tag x",
        "tag x T",
        "tag x t --expect soon",
        "share x",
        "share x a --open",
        "share x --open --listed",
        "rm",
    ] {
        let words = ["mesh", "data"].into_iter().chain(line.split(' '));
        assert!(Args::try_parse_from(words).is_err(), "{line}");
    }
}

#[test]
fn a_wide_list_has_every_column() {
    let text = list::table(&several(), now_ms()).render(Some(120), Paint(false));
    assert_eq!(
        text,
        "\
NAME                                         VERSION  PARTY     VISIBILITY      SIZE  FILES  COPIES  CREATED  TAGS
mnist                                              3  lab       shared      11.1 MiB     70     2/3  5m ago   clean v1.0
clinic-a/chest-x-rays-of-the-northern-clin…       12  clinic-a  listed             -      -       -  2d ago   -
tmp                                                1  lab       private          5 B      1     0/1  now      -
"
    );
}

#[test]
fn a_narrow_list_keeps_what_matters_and_fits() {
    let text = list::table(&several(), now_ms()).render(Some(60), Paint(false));
    assert_eq!(
        text,
        "\
NAME            VERSION  PARTY         SIZE  COPIES  CREATED
mnist                 3  lab       11.1 MiB     2/3  5m ago
clinic-a/ches…       12  clinic-a         -       -  2d ago
tmp                   1  lab            5 B     0/1  now
"
    );
}

#[test]
fn too_few_copies_are_seen_by_their_colour() {
    let text = list::table(&several(), now_ms()).render(None, Paint(true));
    assert!(text.contains("\x1b[33m2/3\x1b[0m") && text.contains("\x1b[31m0/1\x1b[0m"), "{text}");
}

#[test]
fn one_version_is_shown_with_who_holds_how_much_of_it() {
    let text = show::text(&parsed(mnist()), look(120, true));
    let manifest = "ab".repeat(32);
    let id = "cd".repeat(16);
    assert_eq!(
        text,
        format!(
            "\
dataset     mnist@3
tags        clean v1.0
party       lab
visibility  shared with clinic-a, clinic-b
size        11.1 MiB in 70 files, 14 chunks, 3 objects
this node   all of it
created     5m ago by alpha
made        by job prep-7 from mnist@2
note        deskewed
manifest    {manifest}
id          {id}

NODE      PARTY     STATE  COPY    HOLDS                           SIZE
alpha     lab       up     kept    ████████████████████ 100 %  11.1 MiB
beta      lab       down   kept    ████████████████████ 100 %  11.1 MiB
gamma[2J  lab       up     coming  ████████░░░░░░░░░░░░  40 %   4.4 MiB
44444444  clinic-a  up     cached  █░░░░░░░░░░░░░░░░░░░   0 %       1 B

2 of 3 copies: gamma[2J is fetching it; beta is down
"
        )
    );
}

#[test]
fn the_picture_fits_a_narrow_terminal_without_more_than_ascii() {
    let text = show::text(&parsed(mnist()), look(60, false));
    assert!(text.contains("####......") && !text.contains('█'), "{text}");
    let (_, holders) = text.split_once("\n\n").unwrap();
    for line in holders.lines() {
        assert!(line.chars().count() <= 60, "{line:?}");
    }
    assert!(holders.contains("coming"), "{text}");
}

#[test]
fn a_shortfall_is_told_in_words() {
    let told = |change: Value| {
        let mut data = mnist();
        for (key, value) in change.as_object().unwrap() {
            data[key] = value.clone();
        }
        copies(&parsed(data))
    };
    assert_eq!(told(json!({ "copies": 3 })).unwrap(), "3 of 3 copies");
    assert_eq!(
        told(json!({ "copies": 1, "copies_wanted": 1, "holders": [] })).unwrap(),
        "1 of 1 copy"
    );
    assert_eq!(
        told(json!({ "copies": 1, "holders": [] })).unwrap(),
        "1 of 3 copies: no other node keeps it yet"
    );
    assert_eq!(
        told(json!({ "holders": [] })).unwrap(),
        "2 of 3 copies: no further node keeps it yet"
    );
    assert_eq!(told(json!({ "copies": 4 })).unwrap(), "4 copies; 3 are wanted");
    assert_eq!(
        told(json!({ "shortfall": "the party has 2 nodes." })).unwrap(),
        "2 of 3 copies: the party has 2 nodes"
    );
    assert_eq!(told(json!({ "copies": null })), None);
}

#[test]
fn a_version_of_which_little_is_known_is_shown_by_that() {
    let listed = &several()[1];
    let text = show::text(listed, look(120, true));
    assert!(text.starts_with("dataset     clinic-a/chest-x-rays-of-the-northern-clinics@12\n"));
    assert!(text.contains("nothing else") && !text.contains("copies") && !text.contains("NODE"));
    let unsafe_yet: Dataset = parsed(json!({ "name": "a", "acknowledged": false }));
    assert!(show::text(&unsafe_yet, look(120, true)).contains("not acknowledged yet"));
}

#[test]
fn the_log_stands_as_it_came_with_the_newest_first() {
    let versions = [3, 2, 1].map(|version| {
        let mut data = mnist();
        data["version"] = json!(version);
        parsed(data)
    });
    let text = list::history(&versions, now_ms()).render(Some(120), Paint(false));
    let shown: Vec<&str> =
        text.lines().skip(1).filter_map(|line| line.split_whitespace().next()).collect();
    assert_eq!(shown, ["3", "2", "1"]);
    assert!(text.contains("alpha") && text.contains("deskewed") && text.contains("2/3"), "{text}");
    for width in WIDTHS {
        let text = list::history(&versions, now_ms()).render(Some(width), Paint(false));
        assert!(text.lines().all(|line| line.chars().count() <= width), "{text}");
        assert!(text.contains("CREATED") && text.contains("SIZE"), "{text}");
    }
}

#[test]
fn a_difference_is_signs_sizes_and_a_summary() {
    let said: Diff = parsed(json!({
        "from": "mnist@2", "to": "mnist@3", "added": 1, "removed": 1, "changed": 2, "unchanged": 66,
        "new_bytes": 1331, "truncated": true, "changes": [
            { "path": "train/1.png", "change": "added", "old_bytes": null, "new_bytes": 1229 },
            { "path": "old\u{1b}[2J.csv", "change": "removed", "old_bytes": 3_565_158u64, "new_bytes": null },
            { "path": "labels.csv", "change": "changed", "old_bytes": 1024, "new_bytes": 1126 },
        ],
    }));
    let typed = || ["mnist:old".to_owned(), "mnist".to_owned()];
    assert_eq!(
        diff::text(&said, typed(), Paint(false)),
        "\
+           1.2 KiB  train/1.png
-           3.4 MiB  old[2J.csv
~ 1.0 KiB → 1.1 KiB  labels.csv
… the first 3 of 4

mnist@2 → mnist@3: 1 added, 1 removed, 2 changed, 66 as they were; 1.3 KiB new.
"
    );
    let dyed = diff::text(&said, typed(), Paint(true));
    assert!(dyed.contains("\x1b[32m+") && dyed.contains("\x1b[31m-") && dyed.contains("\x1b[33m~"));
    let same: Diff = parsed(json!({ "from": null, "unchanged": 70, "new_bytes": 0 }));
    assert_eq!(diff::text(&same, typed(), Paint(false)), "mnist:old and mnist hold the same.\n");
}

#[test]
fn what_takes_room_is_listed_by_whether_it_may_go() {
    let said: Usage = parsed(json!({
        "store_bytes": 4u64 << 30, "free_bytes": 90u64 << 30, "high_bytes": 16u64 << 30, "low_bytes": 12u64 << 30,
        "partial_bytes": 5u64 << 20, "quarantined": 2, "quarantine_bytes": 3u64 << 20, "items": [
            { "name": "mnist", "version": 3, "bytes": 11_639_193u64, "pinned": false, "durable": true, "last_used_at": null },
            { "name": "xray", "version": 1, "bytes": 3u64 << 30, "pinned": false, "durable": false,
              "last_used_at": "2026-11-16T09:00:00Z" },
        ],
    }));
    assert_eq!(
        list::usage(&said, look(60, true)),
        "\
store       4.0 GiB  █████░░░░░░░░░░░░░░░ 25 % of 16.0 GiB
partial     5.0 MiB of pulls that are not at their end
disk free   90.0 GiB
goes        from 16.0 GiB down to 12.0 GiB, what nobody keeps, least used first
quarantine  3.0 MiB in 2 damaged files

NAME   VERSION      SIZE  KEPT    USED
mnist        3  11.1 MiB  copy    -
xray         1   3.0 GiB  may go  3h ago
"
    );
    assert_eq!(list::usage(&Usage::default(), look(60, true)), "");
}

#[test]
fn what_came_of_a_push_and_a_pull_is_told_in_a_line_or_two() {
    let data: Dataset = parsed(mnist());
    let work =
        parsed(json!({ "new_bytes": 1331, "read_bytes": 11_639_193u64, "elapsed_ms": 2100 }));
    assert_eq!(
        pushed(&data, &work),
        "mnist@3: 70 files, 11.1 MiB; 1.3 KiB of it new (read 11.1 MiB in 2s).\n\
         2 of 3 copies: gamma[2J is fetching it; beta is down.\n"
    );
    let work = parsed(json!({ "new_bytes": 1331, "mended_objects": 1 }));
    assert!(
        pushed(&data, &work).starts_with(
            "mnist@3: 70 files, 11.1 MiB; 1.3 KiB of it new; 1 damaged object mended.\n"
        )
    );
    let work = parsed(
        json!({ "fetched_bytes": 0, "local_bytes": 11_639_193u64, "elapsed_ms": 40, "dir": "/w/m" }),
    );
    assert_eq!(
        pulled(&data, &work, Some(Path::new("m"))),
        "mnist@3 is in m: 70 files, 11.1 MiB; nothing had to be fetched, 11.1 MiB here already (in 40ms).\n"
    );
    let work = parsed(
        json!({ "fetched_bytes": 1024, "local_bytes": 0, "mended_objects": 2, "dir": "/w" }),
    );
    assert_eq!(
        pulled(&data, &work, None),
        "mnist@3 is in /w: 70 files, 11.1 MiB; 1.0 KiB fetched, 2 damaged objects mended.\n"
    );
    let work = parsed(json!({ "mended_objects": 0 }));
    assert_eq!(
        pulled(&data, &work, None),
        "mnist@3 is in this node's store: 70 files, 11.1 MiB.\n"
    );
}

#[test]
fn what_changes_with_the_readers_of_a_version_is_told() {
    let data: Dataset = parsed(mnist());
    let told = |work: Value| readers(&data, &parsed(work));
    let first = "mnist@3 is shared with clinic-a, clinic-b.\n";
    assert_eq!(told(json!({ "old_version": null, "dropped_tags": [] })), first);
    assert_eq!(
        told(json!({ "old_version": 2 })),
        format!(
            "{first}It was mnist@2, and is mnist@3 now: others get to see a number of mnist once.\n"
        )
    );
    assert_eq!(
        told(json!({ "dropped_tags": ["old", "v1"] })),
        format!("{first}These tags do not stand for mnist@3 any more: old v1.\n")
    );
}

#[test]
fn the_help_on_a_push_tells_what_it_says_when_it_has_waited_in_vain() {
    let mut data = mnist();
    data["shortfall"] = json!("1 more should stand, and 2 nodes that could have one do not answer");
    let said = unacknowledged(&parsed(data));
    let help = PUSH.split_whitespace().collect::<Vec<_>>().join(" ");
    for (words, in_text) in [
        ("nodes that could have one do not answer", &said.cause),
        ("made, but not acknowledged yet", &said.message),
        ("is copied as soon as they do", &said.hint),
    ] {
        assert!(help.contains(words) && in_text.contains(words), "{words}: {said:?}");
    }
}

#[test]
fn a_push_without_room_for_its_copies_fails_and_names_the_nodes() {
    let mut data = mnist();
    data["shortfall"] = json!("1 more should stand before a node is lost, and no room on beta");
    let said = no_room(&parsed(data));
    assert_eq!(said.code, Code::Failed);
    assert!(said.message.starts_with("mnist@3 is made"), "{said:?}");
    assert!(said.cause.contains("no room on beta"), "{said:?}");
    assert!(PUSH.contains("no room"), "the help knows of it");
}

#[test]
fn a_file_that_changed_where_it_was_pushed_in_place_is_shown() {
    let shown = |files: Value| {
        let mut data = mnist();
        data["changed_files"] = files;
        show::text(&parsed(data), look(120, true))
    };
    assert!(!shown(json!(null)).contains("pushed in place"));
    let one = shown(json!(["/nas/a.bin"]));
    assert!(one.contains("/nas/a.bin is not what it was"), "{one}");
    let some = shown(json!(["/nas/a.bin", "/nas/b.bin", "/nas/c.bin"]));
    assert!(some.contains("/nas/a.bin and 2 other files are not"), "{some}");
}

#[test]
fn that_a_party_shows_nothing_is_no_reason_to_push() {
    assert!(list::nothing(None).contains("mesh data push"));
    let beta = list::nothing(Some("beta"));
    assert!(beta.starts_with("beta has no dataset that") && !beta.contains("push"), "{beta}");
}

#[test]
fn what_becomes_of_what_others_have_is_told_in_the_same_words_everywhere() {
    let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let readme = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../README.md"));
    let said = TAKEN_BACK.trim_start_matches("The ");
    for text in [UNSHARE, readme] {
        assert!(words(text).contains(said), "{text}");
    }
}

#[test]
fn damage_is_named_and_what_stays_damaged_is_counted() {
    let found: Verified = parsed(json!({ "checked_bytes": 1024, "damaged": [], "repaired": 0 }));
    assert_eq!(verified("a@1".into(), &found, 0), "a@1 is whole; 1.0 KiB checked.\n");
    let found: Verified = parsed(json!({ "damaged": [{ "path": "x\u{1b}y" }], "repaired": 0 }));
    let text = verified("a@1".into(), &found, 1);
    assert!(text.contains("1 damaged file:\n  xy\n") && text.contains("could not be"), "{text}");
}

#[test]
fn the_bar_is_for_those_who_look() {
    assert!(is_wanted(false, true));
    assert!(!is_wanted(true, true) && !is_wanted(false, false) && !is_wanted(true, false));
}

#[test]
fn a_rate_is_told_once_there_was_time_for_one() {
    assert_eq!(rate(Duration::from_millis(3), 8e12), "");
    assert_eq!(rate(Duration::from_millis(200), 2_097_152.0), "2.00 MiB/s");
}

#[test]
fn progress_is_told_in_words_beside_the_bar() {
    let of = |value| parsed::<Progress>(value);
    let reading =
        of(json!({ "phase": "reading", "bytes": 5, "files": 3, "total_files": 70, "peers": 0 }));
    assert_eq!((reading.doing().as_ref(), reading.beside().as_str()), ("reading", "3/70 files"));
    let copying = of(
        json!({ "phase": "copies", "files": null, "peers": 2, "copies": 1, "copies_wanted": 3 }),
    );
    assert_eq!(
        (copying.doing().as_ref(), copying.beside().as_str()),
        ("copying", "1/3 copies, 2 peers")
    );
    let later = of(json!({ "phase": "\u{1b}[2Jpondering" }));
    assert_eq!((later.doing().as_ref(), later.beside().as_str()), ("[2Jpondering", ""));
}

#[test]
fn a_line_is_progress_an_end_or_an_error_and_anything_else_is_left_alone() {
    let line = |value: Value| read(&value.to_string());
    assert!(matches!(line(json!({ "kind": "progress", "phase": "x" })), Ok(Line::Progress(_))));
    assert!(matches!(line(json!({ "kind": "progress", "bytes": "many" })), Ok(Line::Other)));
    assert!(matches!(line(json!({ "kind": "of a later version" })), Ok(Line::Other)));
    let done = json!({ "schema": 1, "kind": "done", "index": 7, "age_ms": 0, "item": {} });
    let Ok(Line::Done(answer)) = line(done) else { panic!("no end") };
    assert_eq!(answer.json(), &json!({ "schema": 1, "index": 7, "age_ms": 0, "item": {} }));
    let error = line(json!({ "kind": "error", "error": { "message": "m" } })).unwrap_err();
    assert_eq!((error.code, error.message.as_str()), (Code::Failed, "m"));
    assert_eq!(read("not json").unwrap_err().code, Code::Unavailable);
}

#[test]
fn a_path_is_made_whole_and_keeps_the_name_that_was_typed() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().canonicalize().unwrap();
    std::fs::create_dir(root.join("real")).unwrap();
    std::os::unix::fs::symlink(root.join("real"), root.join("alias")).unwrap();
    let whole = |path: &Path| absolute(path).unwrap();
    assert_eq!(whole(&root.join("alias")), root.join("alias").to_str().unwrap());
    assert_eq!(whole(&root.join("real/..")), root.to_str().unwrap());
    assert!(whole(Path::new("x")).ends_with("/x") && whole(Path::new("x")).starts_with('/'));
    let odd = std::ffi::OsStr::from_bytes(b"a\xff");
    assert_eq!(absolute(Path::new(odd)).unwrap_err().code, Code::Failed);
}
