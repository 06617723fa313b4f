//! Hostile scripts: each ends within its limits of time and memory, for any combination of operations.
//!
//! `CROWSNEST_CASES` sets the number of cases of the property test.

use std::time::Duration;

use crowsnest_tests::cpu_time;
use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use rstest::rstest;
use serde_json::json;

use super::*;

/// Time limit of a script in these tests.
const TIME: Duration = Duration::from_millis(50);
/// Time limit in the property test, which is dominated by scripts that do not end.
const SHORT_TIME: Duration = Duration::from_millis(5);
/// Additional CPU time for a single instruction that copies as much as the memory limit, in a debug build.
const OVERRUN: Duration = Duration::from_secs(3);

fn cases(default: u32) -> u32 {
    std::env::var("CROWSNEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(default)
}

/// Runs a script. Returns its result, and an error if it exceeded its limits.
fn run_measured(script: &str, time: Duration) -> (Result<Json, ScriptError>, Result<(), String>) {
    let started_at = cpu_time();
    // On a busy machine the time limit can pass before the script starts.
    let lua = match sandbox::create_vm(time) {
        Ok(lua) => lua,
        Err(error) => return (Err(error.into()), Ok(())),
    };
    let object = json!({"metadata": {"name": "web"}, "spec": {"replicas": 3}});
    let result = run_in(&lua, script, "ReflectStatus", &[&object], |call_arguments, status, _| {
        expect_table(call_arguments, "replica", &status, &[])
    });
    let (took, memory) = (cpu_time() - started_at, lua.used_memory());
    let message = result.as_ref().err().map_or(0, |error| error.to_string().len());
    let within = match took <= time + OVERRUN && memory <= MAX_MEMORY_BYTES && message <= MAX_MESSAGE_BYTES + 256 {
        true => Ok(()),
        false => Err(format!("took {took:?}, {memory} bytes, a message of {message}")),
    };
    (result, within)
}

#[rstest]
#[case::stacked_patterns("local s = ('a'):rep(30000) return {v = s:find(('.-'):rep(12) .. 'b')}")]
#[case::stacked_matches("local s = ('a'):rep(30000) return {v = s:match(('.*'):rep(12) .. 'b')}")]
#[case::stacked_iteration("for w in ('a'):rep(30000):gmatch(('a*'):rep(9) .. 'b') do end return {}")]
#[case::stacked_replacement("return {v = ('a'):rep(30000):gsub(('a-'):rep(9) .. 'b', 'x')}")]
#[case::plain_search("return {v = ('a'):rep(8000000):find(('a'):rep(4000000) .. 'b', 1, true)}")]
#[case::huge_sets("return {v = ('a'):rep(1000000):find('[' .. ('b'):rep(1000000) .. ']')}")]
#[case::repeated_copies("local s = ('x'):rep(10000000) while true do s = s:upper():lower():reverse() end")]
#[case::concatenated("local s = ('x'):rep(10000000) while true do local t = s .. '1' .. s end")]
#[case::compared("local a, b = ('x'):rep(9000000) .. 'a', ('x'):rep(9000000) .. 'b' while a < b do end")]
#[case::sorted_texts(
    "local a, b, t = ('x'):rep(9000000) .. 'a', ('x'):rep(9000000) .. 'b', {}
     for i = 1, 100000 do t[i] = i % 2 == 0 and a or b end table.sort(t)"
)]
#[case::sorted_without_order(
    "local t = {} for i = 1, 100000 do t[i] = i end table.sort(t, function() return true end)"
)]
#[case::inserted_in_front("local t = {} for i = 1, 1e9 do table.insert(t, 1, i) end")]
#[case::joined(
    "local t = {} for i = 1, 100000 do t[i] = ('x'):rep(1000) end while true do local s = table.concat(t) end"
)]
#[case::formatted("local s = ('x'):rep(1000000) while true do s = string.format('%s%q', s, s) end")]
#[case::dates("while true do os.date(('%c'):rep(100000)) end")]
#[case::caught("while true do pcall(string.rep, 'x', 1e9) pcall(error, ('x'):rep(1000000)) end")]
#[case::endless_error_handler("local function f() while true do end end xpcall(f, f)")]
#[case::failing_error_handler("local function f() error(1) end while true do xpcall(f, f) end")]
#[case::long_error_message("error(('x'):rep(10000000))")]
#[case::deep("local function f() return f() + 1 end return {f()}")]
#[case::many_values("return {unpack({}, 1, 1e8)}")]
#[case::pods(
    "local t = {spec = {containers = {}}} for i = 1, 300000 do t.spec.containers[i] = {name = 'a'} end
    while true do require('kube').accuratePodRequirements(t) end"
)]
#[case::quantities("return {require('kube').resourceAdd(('\\1'):rep(10000000))}")]
fn scripts_end_within_their_limits(#[case] body: &str) {
    let (_, within) = run_measured(&format!("function ReflectStatus(obj) {body} end"), TIME);
    assert_eq!(within, Ok(()), "{body}");
}

/// A small table can describe a result that exceeds the memory limit.
#[rstest]
#[case::nested("local t = {1} for i = 1, 100 do t = {t, t} end return t")]
#[case::repeated("local s, t = ('x'):rep(1000000), {} for i = 1, 100000 do t[i] = s end return t")]
fn results_are_bounded(#[case] body: &str) {
    let (result, within) = run_measured(&format!("function ReflectStatus(obj) {body} end"), Duration::from_secs(5));
    let message = result.expect_err("too much").to_string();
    assert!(message.starts_with("cannot encode more than"), "{message}");
    assert_eq!(within, Ok(()));
}

#[test]
fn long_script_is_rejected_in_time() {
    let started_at = cpu_time();
    compile(&format!("{} a a", "a=1 ".repeat(200_000))).expect_err("no script");
    let took = cpu_time() - started_at;
    assert!(took < Duration::from_secs(20), "{took:?}");
}

#[rstest]
#[case("io")]
#[case("debug")]
#[case("ffi")]
#[case("jit")]
#[case("package")]
#[case("bit")]
#[case("coroutine")]
#[case("string.dump")]
#[case("table.foreach")]
#[case("table.move")]
#[case("os.execute")]
#[case("os.getenv")]
#[case("os.exit")]
#[case("os.remove")]
fn unsafe_globals_are_missing(#[case] name: &str) {
    let (result, _) =
        run_measured(&format!("function ReflectStatus() return {{v = type({name})}} end"), SCRIPT_TIMEOUT);
    assert_eq!(result.expect("a status"), json!({"v": "nil"}), "{name}");
}

/// String functions return the results of LuaJIT's own library for well-behaved scripts.
#[rstest]
#[case("('nginx:1.25'):match('^(.-):(.*)$')", json!(["nginx", "1.25"]))]
#[case("('a,b,,c'):gsub(',', ';', 2)", json!(["a;b;,c", 2]))]
#[case("('hello world'):gsub('(%w+) (%w+)', '%2 %1 %0 %%')", json!(["world hello hello world %", 1]))]
#[case("('abc'):gsub('', '-')", json!(["-a-b-c-", 4]))]
#[case("('abc'):gsub('%w', {a = '1', b = false})", json!(["1bc", 3]))]
#[case("('abc'):gsub('%w', function(c) if c ~= 'b' then return c:upper() end end)", json!(["AbC", 3]))]
#[case("('abc'):gsub('^a', 'x')", json!(["xbc", 1]))]
#[case("('aaa'):gsub('^a', 'x')", json!(["xaa", 1]))]
#[case("('hello'):gsub('l+', string.upper)", json!(["heLLo", 1]))]
#[case("('a.b'):find('.', 1, true)", json!([2, 2]))]
#[case("('a.b'):find('b', -1)", json!([3, 3]))]
#[case("('abc'):find('b', 10)", json!([]))]
#[case("string.find(12345, '3')", json!([3, 3]))]
#[case("(function() local t = {} for k, v in ('a=1, b=2'):gmatch('(%w+)=(%w+)') do t[#t + 1] = k .. v end return unpack(t) end)()", json!(["a1", "b2"]))]
#[case("(function() local t = {3, 1, 2} table.sort(t) return unpack(t) end)()", json!([1, 2, 3]))]
#[case("(function() local t = {'b', 'c', 'a', 'd', 'e'} table.sort(t, function(a, b) return a > b end) return unpack(t) end)()", json!(["e", "d", "c", "b", "a"]))]
#[case("table.concat({1, 'a', 2}, '-')", json!(["1-a-2"]))]
#[case("('ab'):rep(3)", json!(["ababab"]))]
#[case("pcall(string.rep)", json!([false, "bad argument #1 to '?' (string expected, got nil)"]))]
#[case("select(2, pcall(function() local a = ('x'):find('[') end))", json!(["<string>:1: malformed pattern (missing ']')"]))]
#[case("select(2, pcall(function() local a = ('x'):gsub('x', '%2') end))", json!(["<string>:1: invalid capture index"]))]
#[case("select(2, pcall(function() local a = ('x'):gsub('x', function() error('no', 0) end) end))", json!(["no"]))]
fn string_functions_equal_luajit(#[case] expression: &str, #[case] expected: Json) {
    let (result, _) = run_measured(&format!("function ReflectStatus() return {{{expression}}} end"), SCRIPT_TIMEOUT);
    assert_eq!(result.expect("a status"), expected_or_empty(expected), "{expression}");
}

/// Replaces empty lists with empty maps, since Lua does not distinguish them.
fn expected_or_empty(expected: Json) -> Json {
    if expected.as_array().is_some_and(Vec::is_empty) { json!({}) } else { expected }
}

/// Generates a large string, number or table.
fn value() -> impl Strategy<Value = String> {
    let leaf = prop_oneof![
        Just("s".to_owned()),
        Just("t".to_owned()),
        Just("obj".to_owned()),
        Just("nil".to_owned()),
        (0..8_u32).prop_map(|exponent| format!("{}", 10_u64.pow(exponent))),
        (0..7_u32).prop_map(|exponent| format!("('a'):rep({})", 10_u64.pow(exponent))),
        Just("('.-'):rep(9) .. 'b'".to_owned()),
        Just("function(...) return ... end".to_owned()),
    ];
    leaf.prop_recursive(3, 8, 2, |inner| {
        prop_oneof![
            (inner.clone(), inner.clone()).prop_map(|(a, b)| format!("(({a}) .. ({b}))")),
            (inner.clone(), inner.clone()).prop_map(|(a, b)| format!("{{{a}, {b}}}")),
            (call(), inner.clone(), inner).prop_map(|(call, a, b)| format!("{call}({a}, {b})")),
        ]
    })
}

fn call() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec![
        "string.find",
        "string.match",
        "string.gmatch",
        "string.rep",
        "string.format",
        "string.upper",
        "string.byte",
        "string.char",
        "string.reverse",
        "string.sub",
        "table.concat",
        "table.sort",
        "table.insert",
        "table.remove",
        "table.maxn",
        "unpack",
        "tostring",
        "tonumber",
        "next",
        "pcall",
        "xpcall",
        "select",
        "error",
        "os.date",
        "math.max",
        "require",
        "require('kube').resourceAdd",
        "require('kube').getPodDependencies",
    ])
}

fn statement() -> impl Strategy<Value = String> {
    let leaf = prop_oneof![
        value().prop_map(|value| format!("s = tostring({value})")),
        value().prop_map(|value| format!("t[#t + 1] = {value}")),
        (value(), value()).prop_map(|(key, value)| format!("t[{key}] = {value}")),
        (call(), value(), value()).prop_map(|(call, a, b)| format!("t = {{{call}({a}, {b})}}")),
        (value(), value(), value()).prop_map(|(a, b, c)| format!("s = string.gsub({a}, {b}, {c})")),
        Just("t = {t, t}".to_owned()),
        Just("s = s .. s".to_owned()),
    ];
    leaf.prop_recursive(3, 12, 3, |inner| {
        let block = prop::collection::vec(inner, 1..4).prop_map(|all| all.join(" "));
        prop_oneof![
            block.clone().prop_map(|body| format!("while true do {body} end")),
            block.clone().prop_map(|body| format!("for i = 1, 1e9 do {body} end")),
            block.clone().prop_map(|body| format!("pcall(function() {body} end)")),
            block.prop_map(|body| format!("local function f() {body} return f() end f()")),
        ]
    })
}

#[test]
fn random_scripts_stay_within_their_limits() {
    let config = ProptestConfig { cases: cases(100), rng_seed: RngSeed::Fixed(31), ..ProptestConfig::default() };
    proptest!(config, |(statements in prop::collection::vec(statement(), 1..5))| {
        let script = format!("function ReflectStatus(obj) local s, t = 'abc', {{}} {} return t end", statements.join(" "));
        let (_, within) = run_measured(&script, SHORT_TIME);
        prop_assert_eq!(within, Ok(()));
    });
}
