//! Patterns compared with LuaJIT's own matcher, and under an exhausted budget.

use std::time::Duration;

use crowsnest_tests::cpu_time;
use mlua::Lua;
use proptest::prelude::*;
use rstest::rstest;

use super::*;

fn budget() -> Budget {
    Budget::new(Duration::from_secs(60))
}

/// Result of LuaJIT's `string.find`, or its error message.
fn find_with_luajit(lua: &Lua, subject: &str, pattern: &str) -> std::result::Result<Vec<String>, String> {
    let script = "local subject, pattern = ... local all = {pcall(string.find, subject, pattern)}
        local texts = {} for index = 1, #all do texts[index] = tostring(all[index]) end return texts";
    let results: Vec<String> = lua.load(script).call((subject, pattern)).expect("results");
    match results.split_first() {
        Some((status, rest)) if status == "true" => Ok(rest.iter().filter(|text| *text != "nil").cloned().collect()),
        _ => Err(results.get(1).cloned().unwrap_or_default()),
    }
}

fn find_with_matcher(subject: &str, pattern: &str) -> std::result::Result<Vec<String>, String> {
    let (subject, pattern) = (subject.as_bytes(), pattern.as_bytes());
    let found = match has_specials(pattern) {
        true => find(subject, pattern, 0, true, &budget()),
        false => find_plain(subject, pattern, 0, &budget()),
    };
    let Some(found) = found.map_err(|error| error.to_string())? else { return Ok(Vec::new()) };
    let mut results = vec![(found.start + 1).to_string(), found.end.to_string()];
    results.extend(found.captures.iter().map(|capture| match capture {
        Capture::Position(position) => (position + 1).to_string(),
        Capture::Text(start, end) => String::from_utf8_lossy(&subject[*start..*end]).into_owned(),
    }));
    Ok(results)
}

#[rstest]
#[case("nginx:1.25", "^(.-):(.*)$")]
#[case("key = value", "(%w+)%s*=%s*(%w+)")]
#[case("f(a(b)c)d", "%b()")]
#[case("THE (quick) fox", "%f[%a]%a+%f[%A]")]
#[case("hello hello", "(h%w+) %1")]
#[case("abc", "()b()")]
#[case("a-b", "a-b")]
#[case("a.b", "a%.b")]
#[case("x]y", "[]]")]
#[case("x^y", "[%^x]+")]
#[case("a-z", "[a%-z]+")]
#[case("", "")]
#[case("", ".*")]
#[case("aaa", "a-$")]
#[case("$5", "$%d")]
#[case("abc", "[^%s]+$")]
#[case("abc", "%")]
#[case("abc", "[a")]
#[case("abc", "(a")]
#[case("abc", "a)")]
#[case("abc", "%1")]
#[case("abc", "%b(")]
#[case("abc", "%fa")]
fn results_equal_luajit(#[case] subject: &str, #[case] pattern: &str) {
    assert_eq!(
        find_with_matcher(subject, pattern),
        find_with_luajit(&Lua::new(), subject, pattern),
        "{pattern:?} of {subject:?}"
    );
}

#[rstest]
#[case::stacked(".-.-.-.-.-.-.-.-.-.-x")]
#[case::greedy(".*.*.*.*.*.*.*x")]
#[case::set("[^b]*[^b]*[^b]*[^b]*[^b]*x")]
#[case::captures("(a*)(a*)(a*)(a*)%1%2%3x")]
#[case::balanced("%bab")]
fn matching_ends_with_the_budget(#[case] pattern: &str) {
    let subject = "a".repeat(100_000);
    let started_at = cpu_time();
    let result = find(subject.as_bytes(), pattern.as_bytes(), 0, true, &Budget::new(Duration::from_millis(50)));
    assert_eq!(result, Err(PatternError::BudgetExhausted));
    let took = cpu_time() - started_at;
    assert!(took < Duration::from_secs(2), "{took:?}");
}

#[test]
fn plain_search_ends_with_the_budget() {
    let (subject, needle) = ("a".repeat(2_000_000), format!("{}b", "a".repeat(1_000_000)));
    let budget = Budget::new(Duration::from_millis(50));
    assert_eq!(find_plain(subject.as_bytes(), needle.as_bytes(), 0, &budget), Err(PatternError::BudgetExhausted));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, rng_seed: proptest::test_runner::RngSeed::Fixed(31), ..ProptestConfig::default() })]
    #[test]
    fn results_equal_luajit_for_random_patterns(
        subject in "[ab(). %-]{0,12}",
        pattern in "(\\^)?([ab.]|%[adlpswxADZ%.()]|\\[\\^?[ab%-]{1,4}\\]|\\(|\\)|%b\\(\\)|%f\\[[ab]\\]|%1|[*+?$-]){0,8}",
    ) {
        let lua = Lua::new();
        prop_assert_eq!(find_with_matcher(&subject, &pattern), find_with_luajit(&lua, &subject, &pattern));
    }
}
