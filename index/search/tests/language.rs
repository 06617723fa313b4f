//! Property tests of the query language: for any text, parsing and planning end quickly, in bounded memory, with a
//! query or with the limit that was exceeded.
//!
//! Runs a fixed number of cases with a fixed seed. `CROWSNEST_QUERY_CASES=1000000` sets the number of cases,
//! `CROWSNEST_QUERY_SEED` the seed.

#![expect(clippy::unwrap_used, reason = "in a test a panic is the report")]

use crowsnest_query::{Expr, Limits, Query, parse};
use crowsnest_search::plan::{ClusterProperties, PlanningContext, plan};
use crowsnest_tests::cpu_time;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use std::time::Duration;

const CASES: u64 = 20_000;
const SEED: u64 = 31;
/// Maximum CPU time of a case, which takes microseconds.
const MAX_CASE_TIME: Duration = Duration::from_secs(5);

/// Tokens of the language, so that generated texts often contain syntax.
const PIECES: &[&str] = &[
    "kind:",
    "pod",
    "label:",
    "app=web",
    "label:!app",
    "in (a,b)",
    "notin (",
    "restarts:",
    ">5",
    "3..10",
    "..",
    "<",
    ">=",
    "has.event(",
    "has.pod(",
    "owner:",
    "uses:",
    "usedby:",
    "deploy/shop/web",
    "(",
    ")",
    "()",
    "OR ",
    "AND ",
    "NOT ",
    "-",
    "!",
    "--",
    "\"",
    "\\\"",
    "/",
    "/i",
    "(a|b)*",
    "[a-z",
    "(a{9}){9}",
    "{",
    "}",
    "[",
    "]",
    ",",
    ",,",
    " ",
    "\t",
    "\n",
    "a",
    "web-0",
    "*",
    "**",
    "?",
    "~",
    "~9",
    "=",
    "=x",
    "!=",
    ".spec.x:",
    ".a[",
    ".a[0].b:",
    "sort:",
    "-name",
    "group:",
    "limit:",
    "99999999999999999999",
    "-1",
    "0x1",
    "1e999",
    "10Gi",
    "100m",
    "NaN",
    "at:",
    "now-1h",
    "now-99999999999d",
    "25:61",
    "2026-13-45T99:00:00Z",
    "during:",
    "changed.field:",
    "created:",
    "<5m",
    "age:",
    "\\",
    "é",
    "ß",
    "\u{1f}",
    "\0",
    "\u{202e}",
    "🦀",
    "cluster:",
    "region:",
    "zone:*",
    "provider:",
    "scope:",
    "depth:",
    "select:",
    "timeout:",
    "::",
    ":",
    "ann:",
    "is:",
    "content:",
    "name:",
    "%",
    "#",
    "$",
];

struct Case(StdRng);

impl Case {
    fn text(&mut self) -> String {
        match self.0.random_range(0..10) {
            0 => self.random_bytes(),
            1 => self.random_characters(),
            2 => self.nested_text(),
            3 => self.repeated_pieces(),
            4 => self.broken_query(),
            _ => self.random_pieces(),
        }
    }

    fn random_below(&mut self, limit: usize) -> usize {
        self.0.random_range(0..limit)
    }

    fn random_pieces(&mut self) -> String {
        let many = self.random_below(24);
        (0..many).map(|_| *PIECES.choose(&mut self.0).unwrap()).collect()
    }

    fn random_bytes(&mut self) -> String {
        let many = self.random_below(200);
        let bytes: Vec<u8> = (0..many).map(|_| self.0.random()).collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    fn random_characters(&mut self) -> String {
        let many = self.random_below(200);
        (0..many).filter_map(|_| char::from_u32(self.0.random_range(0..0x11_0000))).collect()
    }

    /// Nesting far deeper than the limit.
    fn nested_text(&mut self) -> String {
        let (open, inner) = (
            *["(", "NOT ", "-(", "has.event(", "a OR (", "! ", "[", "{"].choose(&mut self.0).unwrap(),
            self.random_pieces(),
        );
        let many = self.random_below(2_000);
        let closed = self.random_below(2_000);
        format!("{}{inner}{}", open.repeat(many), ")".repeat(closed))
    }

    /// Repetition that is sometimes longer than the limit.
    fn repeated_pieces(&mut self) -> String {
        let piece = self.random_pieces();
        let many = self.random_below(400);
        piece.repeat(many)
    }

    /// A valid query with a random replacement in it.
    fn broken_query(&mut self) -> String {
        let mut text: Vec<char> =
            "kind:deploy (ns:shop OR label:app=web) -image:/ngin.x/i restarts:>3 at:now-1h sort:-name limit:10"
                .chars()
                .collect();
        for _ in 0..=self.random_below(6) {
            let at = self.random_below(text.len());
            let replaced = PIECES.choose(&mut self.0).unwrap().chars();
            text.splice(at..=at, replaced);
        }
        text.into_iter().collect()
    }
}

fn planning_context() -> PlanningContext {
    let cluster = |name: &str| ClusterProperties {
        name: name.to_owned(),
        region: "eu".to_owned(),
        ..ClusterProperties::default()
    };
    PlanningContext {
        clusters: ["member1", "member2"].map(cluster).into(),
        now: 1_800_000_000,
        ..PlanningContext::default()
    }
}

fn terms(query: &Query) -> usize {
    let mut terms = 0;
    query.filter.for_each_term(&mut |_| terms += 1);
    terms
}

fn depth(expr: &Expr) -> usize {
    match expr {
        Expr::And(parts) | Expr::Or(parts) => 1 + parts.iter().map(depth).max().unwrap_or_default(),
        Expr::Not(inner) => 1 + depth(inner),
        _ => 1,
    }
}

/// Invariants for any text.
fn check(text: &str, limits: &Limits, planning_context: &PlanningContext) {
    match parse(text, limits) {
        Ok(query) => {
            assert!(text.len() <= limits.length, "it is {} bytes long", text.len());
            assert!(terms(&query) <= limits.terms, "it has {} terms", terms(&query));
            // Each level is an OR of ANDs.
            assert!(depth(&query.filter) <= 3 * (limits.depth + 1), "it is {} levels deep", depth(&query.filter));
            assert!(query.notices.len() <= text.len() + 1, "{} notices", query.notices.len());
            assert_eq!(parse(text, limits).as_ref(), Ok(&query), "parsing is not deterministic");
            drop(plan(&query, planning_context));
            let printed = query.to_string();
            assert!(printed.len() <= 64 * (text.len() + 16), "{} bytes became {}", text.len(), printed.len());
            drop(parse(&printed, limits));
        }
        Err(exceeded) => {
            let message = exceeded.to_string();
            assert!(message.chars().any(|c| c.is_ascii_digit()), "{message:?} does not name the limit");
        }
    }
}

/// The number in an environment variable.
fn read_number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().map_or(default, |text| text.parse().unwrap())
}

#[test]
fn any_text_is_read_and_planned() {
    let (cases, seed) = (read_number("CROWSNEST_QUERY_CASES", CASES), read_number("CROWSNEST_QUERY_SEED", SEED));
    let (limits, planning_context) = (Limits::default(), planning_context());
    let started_at = cpu_time();
    let mut slowest = (Duration::ZERO, 0);
    for nth in 0..cases {
        // Each case has its own seed, so its number reproduces it.
        let text = Case(StdRng::seed_from_u64(seed.wrapping_mul(1 << 32).wrapping_add(nth))).text();
        let case_began = cpu_time();
        let result = std::panic::catch_unwind(|| check(&text, &limits, &planning_context));
        assert!(result.is_ok(), "case {nth} of seed {seed}: {text:?}");
        slowest = slowest.max((cpu_time() - case_began, nth));
    }
    println!(
        "{cases} cases in {:?}, the slowest one (number {}) in {:?}",
        cpu_time() - started_at,
        slowest.1,
        slowest.0
    );
    assert!(slowest.0 < MAX_CASE_TIME, "case {} of seed {seed} took {:?}", slowest.1, slowest.0);
}

#[test]
fn oversized_queries_are_refused_immediately() {
    let (limits, planning_context) = (Limits::default(), planning_context());
    let (many, deep) = (10 << 20, 1 << 20);
    for (text, limit) in [
        ("a".repeat(many), limits.length),
        ("(".repeat(deep), limits.length),
        ("(".repeat(limits.length), limits.depth),
        ("NOT ".repeat(limits.length / 4), limits.depth),
        ("has.event(".repeat(limits.length / 10), limits.depth),
        ("a ".repeat(limits.length / 2), limits.terms),
        (format!("/{}/", "a".repeat(limits.regex + 1)), limits.regex),
    ] {
        let started_at = cpu_time();
        let refused = parse(&text, &limits).unwrap_err().to_string();
        assert!(refused.contains(&limit.to_string()), "{refused}");
        let took = cpu_time() - started_at;
        assert!(took < MAX_CASE_TIME, "{refused}: {took:?}");
        check(&text, &limits, &planning_context);
    }
}
