use super::*;

fn sample() -> Table {
    let mut table = Table::new(&[
        Column::new("NAME").least(6),
        Column::new("STATE"),
        Column::new("CPU").right().worth(2),
        Column::new("ADDRESS").least(8).worth(1),
    ]);
    table.row([
        "alpha-node".into(),
        Cell::new("up", Tint::Good),
        "16".into(),
        "10.0.0.5:6374".into(),
    ]);
    table.row(["b".into(), Cell::new("down", Tint::Bad), "4".into(), "".into()]);
    table
}

#[test]
fn columns_line_up_and_nothing_is_a_dash() {
    let text = sample().render(None, Paint(false));
    assert_eq!(
        text,
        "NAME        STATE  CPU  ADDRESS\n\
         alpha-node  up      16  10.0.0.5:6374\n\
         b           down     4  -\n"
    );
}

#[test]
fn a_table_fits_any_width_that_its_columns_allow() {
    for width in 13..60 {
        let text = sample().render(Some(width), Paint(false));
        for line in text.lines() {
            assert!(line.chars().count() <= width, "{width}: {line:?}");
        }
        assert!(text.contains("STATE") && text.contains("down"), "{width}: {text}");
    }
}

#[test]
fn a_narrow_table_cuts_words_before_it_loses_columns() {
    let text = sample().render(Some(32), Paint(false));
    assert!(text.contains("ADDRESS") && text.contains('…'), "{text}");
    let text = sample().render(Some(20), Paint(false));
    assert!(!text.contains("ADDRESS") && text.contains("CPU"), "{text}");
}

#[test]
fn colour_changes_no_width() {
    let plain = sample().render(Some(30), Paint(false));
    let dyed = sample().render(Some(30), Paint(true));
    assert!(dyed.contains("\x1b[31mdown\x1b[0m"));
    let mut stripped = dyed;
    for code in ["\x1b[0m", "\x1b[1m", "\x1b[2m", "\x1b[31m", "\x1b[32m"] {
        stripped = stripped.replace(code, "");
    }
    assert_eq!(plain, stripped);
}

#[test]
fn what_others_call_themselves_cannot_move_the_cursor() {
    assert_eq!(clean("\x1b[2Ja\nb\u{202e}c\r"), "[2Ja bc");
}

#[test]
fn sizes_have_three_figures_and_binary_units() {
    let shown = [0, 999, 1024, 1536, 12 << 30, 80 << 30, 251 << 30, 1000 << 30].map(bytes);
    assert_eq!(
        shown,
        ["0 B", "999 B", "1.0 KiB", "1.5 KiB", "12.0 GiB", "80.0 GiB", "251 GiB", "1.0 TiB"]
    );
}

#[test]
fn cores_have_no_more_digits_than_they_need() {
    assert_eq!([0, 250, 1500, 2000, 100_000].map(cores), ["0", "0.25", "1.5", "2", "100"]);
}

#[test]
fn lines_keep_their_indent_and_lose_what_a_terminal_would_obey() {
    assert_eq!(clean_lines("a\n  | \x1b[2J^\tb\r\n"), "a\n  | [2J^ b");
}

#[test]
fn times_are_told_in_one_unit_to_the_nearest() {
    const HOUR: u64 = 3_600_000;
    for (ms, shown) in [
        (0, "0ms"),
        (999, "999ms"),
        (1499, "1s"),
        (1500, "2s"),
        (30_000, "30s"),
        (59_499, "59s"),
        (59_500, "1m"),
        (89_999, "1m"),
        (90_000, "2m"),
        (300_000, "5m"),
        (HOUR - 30_001, "59m"),
        (HOUR - 30_000, "1h"),
        (3 * HOUR, "3h"),
        (24 * HOUR - 1000, "24h"),
        (47 * HOUR, "47h"),
        (48 * HOUR - 1, "2d"),
        (60 * HOUR - 1, "2d"),
        (60 * HOUR, "3d"),
        (u64::MAX, "213503982335d"),
    ] {
        assert_eq!(span(ms), shown, "{ms}");
    }
    assert_eq!((ago(1999), ago(2000)), ("now".into(), "2s".into()));
    let noon = millis("2026-11-16T12:00:00Z").unwrap();
    assert_eq!(when("2026-11-16T12:05:00Z", noon), "in 5m");
    // A ticket for a day that was made a moment ago.
    assert_eq!(when("2026-11-17T11:59:59Z", noon), "in 24h");
    assert_eq!(when("2026-11-16T11:00:00.5Z", noon), "1h ago");
    assert_eq!(when("soon", noon), "soon");
}

#[test]
fn ids_are_as_short_as_tells_them_apart() {
    assert_eq!(short_ids(&["aaaaaaaaaaaa", "bbbbbbbbbbbb"]), ["aaaaaaaa", "bbbbbbbb"]);
    assert_eq!(short_ids(&["aaaaaaaaa1xx", "aaaaaaaaa2xx"]), ["aaaaaaaaa1", "aaaaaaaaa2"]);
    assert_eq!(short_ids(&["abc", "abc"]), ["abc", "abc"]);
}

#[test]
fn a_bar_is_full_only_for_all_and_empty_only_for_nothing() {
    let drawn = |part| bar(part, 1000, 10, true);
    assert_eq!(drawn(0), "░░░░░░░░░░");
    assert_eq!(drawn(1), "█░░░░░░░░░");
    assert_eq!(drawn(500), "█████░░░░░");
    assert_eq!(drawn(999), "█████████░");
    assert_eq!(drawn(1000), "██████████");
    assert_eq!(bar(1, 2, 4, false), "##..");
    // Nothing of nothing is all of it.
    assert_eq!((bar(0, 0, 4, false), percent(0, 0)), ("####".into(), "100 %".into()));
    assert_eq!((percent(999, 1000), percent(u64::MAX, 3)), ("99 %".into(), "100 %".into()));
    for cells in 0..4 {
        assert_eq!(bar(u64::MAX, 1, cells, false).len(), cells);
    }
}

#[test]
fn the_first_locale_that_is_set_says_whether_there_is_more_than_ascii() {
    let with = |set: &[(&str, &str)]| {
        is_utf8(|name| set.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).into()))
    };
    assert!(with(&[("LANG", "de_DE.UTF-8")]) && with(&[("LC_ALL", "C.utf8"), ("LANG", "C")]));
    assert!(with(&[("LC_ALL", ""), ("LC_CTYPE", "en_US.UTF-8")]));
    assert!(!with(&[("LC_ALL", "C"), ("LANG", "de_DE.UTF-8")]) && !with(&[]));
}
