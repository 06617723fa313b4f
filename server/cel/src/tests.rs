//! Results and errors of expressions, and protection of the server from expensive ones.

use std::sync::Arc;

use proptest::prelude::*;
use rstest::rstest;
use serde_json::{Value, json};

use super::*;
use crate::json::untyped_to_cel;

fn run(source: &str) -> Result<Value, String> {
    let object = json!({
        "name": "n", "none": null, "number": 3, "texts": ["a", "b"], "map": {"x": {"y": 1}},
        "many": (0..2000).collect::<Vec<_>>(),
    });
    let program = Program::compile(source)?;
    with_base_scope(|base| {
        let mut scope = base.new_inner_scope();
        scope.add_variable_from_value("self", untyped_to_cel(&object));
        let value = program.execute(&scope, &mut Budget::for_rules()).map_err(|failure| failure.to_string())?;
        to_json(&value)
    })
}

#[rstest]
#[case::optional_fields("self.?map.?x.?y.orValue(0)", json!(1))]
#[case::optional_fields_that_are_missing("self.?map.?z.?y.orValue(7)", json!(7))]
#[case::fields_of_optionals("self.?map.x.y.hasValue()", json!(true))]
#[case::optional_keys("self.map[?'z'].hasValue()", json!(false))]
#[case::optional_entries("{?'a': self.?name, ?'b': self.?missing}", json!({"a": "n"}))]
#[case::optional_elements("[?self.?name, ?self.?missing]", json!(["n"]))]
#[case::opt_map("self.?number.optMap(n, n + 1).orValue(0)", json!(4))]
#[case::opt_map_of_none("self.?missing.optMap(n, n + 1).hasValue()", json!(false))]
#[case::opt_flat_map("self.?map.optFlatMap(m, m[?'x']).hasValue()", json!(true))]
#[case::pairs_of_lists("self.texts.all(i, t, i < 2 && t != '')", json!(true))]
#[case::pairs_of_maps("self.map.exists(k, v, k == 'x' && v.y == 1)", json!(true))]
#[case::exactly_one_pair("[1, 1].existsOne(i, v, i == v)", json!(true))]
#[case::lists_of_pairs("self.texts.transformList(i, t, i > 0, t + string(i))", json!(["b1"]))]
#[case::maps_of_pairs("self.map.transformMap(k, v, v.y + 1)", json!({"x": 2}))]
#[case::has("has(self.map.x) && !has(self.map.z)", json!(true))]
#[case::replace("'a.b.c'.replace('.', '-', 1)", json!("a-b.c"))]
#[case::replace_all("'aaa'.replace('a', 'b')", json!("bbb"))]
#[case::join("['a', 'b'].join(',')", json!("a,b"))]
#[case::addresses("ip('10.0.0.1').family() == 4 && isIP('::1') && !isIP('::ffff:1.2.3.4')", json!(true))]
#[case::canonical_addresses("[ip.isCanonical('::1'), ip.isCanonical('0::1')]", json!([true, false]))]
#[case::networks("cidr('10.0.0.7/8').containsIP(ip('10.1.2.3')) && !isCIDR('10.0.0.0/08')", json!(true))]
#[case::addresses_of_networks("cidr('10.0.0.7/8').ip() == ip('10.0.0.7')", json!(true))]
#[case::default_ports("url('https://h:443/').getPort()", json!("443"))]
#[case::schemes_of_localhost("url('http://localhost/x').getScheme()", json!("http"))]
#[case::empty_paths("url('https://example.com').getEscapedPath()", json!(""))]
#[case::queries("url('/p?a=1&b=x+y&a=2&c;=3').getQuery()", json!({"a": ["1", "2"], "b": ["x y"]}))]
#[case::equal_urls("url('/p') == url('/p') && url('/p') != url('/q') && !isURL('p')", json!(true))]
#[case::versions("semver('1.2.3').minor() == 2 && isSemver('v1', true) && !isSemver('v1')", json!(true))]
#[case::versions_are_normalized("semver('v01.2', true).compareTo(semver('1.2.0'))", json!(0))]
#[case::texts_of_values("[string(true), string(1000000.0), string(0.00001), string(12.5), string(-3), string(b'a')]", json!(["true", "1e+06", "1e-05", "12.5", "-3", "a"]))]
#[case::texts_of_times("[string(timestamp('2023-01-01T00:00:00.500Z')), string(timestamp('2023-01-01T00:00:00+02:00')), string(duration('1h0.5s'))]", json!(["2023-01-01T00:00:00.5Z", "2023-01-01T00:00:00+02:00", "3600.5s"]))]
#[case::sizes_in_characters("['日本'.size(), size('日本'), size(b'日本'), [1, 2].size(), {'a': 1}.size()]", json!([2, 2, 6, 2, 1]))]
#[case::splits("['a,b,c'.split(','), 'a,b,c'.split(',', 2), 'abc'.split(''), 'abc'.split('', 2), 'a'.split(',', 0), ''.split(',')]", json!([["a", "b", "c"], ["a", "b,c"], ["a", "b", "c"], ["a", "bc"], [], [""]]))]
#[case::sums("[[1, 2].sum(), [].sum(), [duration('1h'), duration('30m')].sum().getMinutes()]", json!([3, 0, 90]))]
#[case::sums_of_doubles("[1.5, 2.0].sum()", json!(3.5))]
#[case::values_of_optionals("[optional.of(1), optional.none()].unwrapOpt()", json!([1]))]
#[case::parts_of_times("[timestamp('2023-12-31T23:30:15.5Z')].map(t, [t.getFullYear(), t.getMonth(), t.getDayOfYear(), t.getDayOfMonth(), t.getDate(), t.getDayOfWeek(), t.getHours(), t.getMinutes(), t.getSeconds(), t.getMilliseconds()])[0]", json!([2023, 11, 364, 30, 31, 0, 23, 30, 15, 500]))]
#[case::parts_in_zones("[timestamp('2023-07-01T12:34:00Z')].map(t, [t.getHours('America/New_York'), t.getHours('+02:00'), t.getMinutes('-03:30'), t.getHours('UTC'), t.getDate('+25:00')])[0]", json!([8, 14, 4, 12, 2]))]
#[case::parts_of_times_with_offsets("timestamp('2023-01-01T00:00:00+02:00').getHours()", json!(22))]
#[case::parts_of_durations("[duration('1h30m').getHours(), duration('1h30m').getMinutes(), duration('90s').getSeconds(), duration('1.5s').getMilliseconds()]", json!([1, 90, 90, 1500]))]
#[case::formats("'%s|%s|%s|%s'.format([2.0, duration('1h'), b'ab', type(1)])", json!("2|3600s|ab|int"))]
#[case::formats_of_lists("'%s'.format([[1, 'a', 2.5, null, [true], duration('1s')]])", json!("[1, \"a\", 2.500000, null, [true], duration(\"1s\")]"))]
#[case::formats_of_maps("'%s'.format([{'b': 3, 'a': 2}])", json!("{\"a\":2, \"b\":3}"))]
#[case::formats_of_numbers("'%d %b %x %X %o %.2f %f %e'.format([-5, -5, 255, 'hi', 8, 1234.567, 1.0, 12345.678])", json!("-5 -101 ff 6869 10 1,234.57 1.000000 1.234568×10⁰⁴"))]
#[case::formats_of_infinities("'%f %s %% %e'.format([double('Infinity'), double('-Infinity'), 'NaN'])", json!("∞ -Inf % NaN"))]
#[case::texts_of_addresses("string(ip('::1')) + string(cidr('10.0.0.0/8'))", json!("::110.0.0.0/8"))]
#[case::networks_within("cidr('10.0.0.0/8').containsCIDR('10.1.0.0/16') && cidr('10.0.0.0/8').containsCIDR(cidr('10.1.0.0/16'))", json!(true))]
#[case::build_metadata_is_ignored("semver('1.0.0+a') == semver('1.0.0+b')", json!(true))]
#[case::signs("[- -3, -(-3), - - -3, 1 - -3, -self.number, - -self.number]", json!([3, 3, -3, 4, -3, 3]))]
#[case::double_negations("!!true && !(!!false) && !!!false", json!(true))]
#[case::long_lists("self.many.all(x, x >= 0)", json!(true))]
#[case::exists_despite_an_error("[self.map, self.map.x].exists(m, m.y == 1)", json!(true))]
#[case::not_all_despite_an_error("[self.map, self.map.x].all(m, m.y == 2)", json!(false))]
#[case::not_all_before_an_error("[self.map.x, self.map].all(m, m.y == 2)", json!(false))]
#[case::pairs_despite_an_error("[self.map, self.map.x].exists(i, m, m.y == i)", json!(true))]
#[case::loops_in_loops("[[0, 1], [1]].all(l, l.exists(i, 1 / i == 1))", json!(true))]
#[case::absorbed_errors("[0].all(i, 1 / i == 1) || true", json!(true))]
#[case::long_maps_of_lists("self.many.map(x, x * 2).filter(x, x > 3990).size()", json!(4))]
fn expressions_evaluate(#[case] source: &str, #[case] expected: Value) {
    assert_eq!(run(source), Ok(expected));
}

#[rstest]
#[case("self.missing", "no such key: missing")]
#[case("self.name.missing", "no such overload")]
#[case("self.texts[5]", "index out of bounds: 5")]
#[case("1 / 0", "division by zero")]
#[case("1 % 0", "modulus by zero")]
#[case("18446744073709551615u + 1u", "unsigned integer overflow")]
#[case("timestamp('9999-12-31T23:59:59Z') + duration('10s')", "timestamp overflow")]
#[case("'a'.matches(self.name + '(')", "error parsing regexp: missing closing ): `n(`")]
#[case("9223372036854775807 + 1", "integer overflow")]
#[case("self.many.all(x, self.many.all(y, y >= 0))", "operation cancelled: actual cost limit exceeded")]
#[case("self.many.exists(x, self.many.exists(y, y < 0)) || true", "operation cancelled: actual cost limit exceeded")]
#[case("self.many.all(x, x in self.many)", "operation cancelled: actual cost limit exceeded")]
#[case("[0, 1].all(i, 1 / i == 1)", "division by zero")]
#[case("[0, 1].exists(i, 1 / i == 2)", "division by zero")]
#[case("[0, 0].exists(i, i == 0 ? 1 / i == 2 : self.missing)", "division by zero")]
#[case("[self.map, self.map.x].exists_one(m, m.y == 1)", "no such key: y")]
#[case(
    "ip('127.0.0.256')",
    "IP Address \"127.0.0.256\" parse error during conversion from string: ParseAddr(\"127.0.0.256\"): IPv4"
)]
#[case(
    "ip.isCanonical('x')",
    "IP Address \"x\" parse error during conversion from string: ParseAddr(\"x\"): unable to parse IP"
)]
#[case("ip('fe80::1%eth0')", "IP address \"fe80::1%eth0\" with zone value is not allowed")]
#[case("ip('::ffff:1.2.3.4')", "IPv4-mapped IPv6 address \"::ffff:1.2.3.4\" is not allowed")]
#[case(
    "cidr('10.0.0.0')",
    "network address parse error during conversion from string: network address parse error during conversion from string: netip.ParsePrefix(\"10.0.0.0\"): no '/'"
)]
#[case("cidr('10.0.0.0/8').containsIP('x')", "no such overload")]
#[case(
    "cidr('10.0.0.0/8').containsCIDR('10.0.0.0/08')",
    "network address parse error during conversion from string: network"
)]
#[case("string(b'\\xff')", "invalid UTF-8 in bytes, cannot convert to string")]
#[case(
    "url('https://a:b:c/')",
    "URL parse error during conversion from string: parse \"https://a:b:c/\": invalid port"
)]
#[case("self.missing || self.map.gone", "no such key: missing")]
#[case("self.missing && self.map.gone", "no such key: missing")]
#[case("size(self.missing)", "no such key: missing")]
#[case("timestamp('2024-01-01T00:00:00Z').getHours('Nowhere/City')", "unknown time zone Nowhere/City")]
#[case("[9223372036854775807, 1].sum()", "integer overflow")]
#[case("size(dyn(5))", "no such overload")]
#[case("string(1 / 0)", "division by zero")]
#[case("semver('1.0')", "No Major.Minor.Patch elements found")]
#[case("timestamp('x')", "type conversion error from 'string' to 'google.protobuf.Timestamp'")]
#[case("duration('x')", "type conversion error from 'string' to 'google.protobuf.Duration'")]
#[case("duration(self.name + '1m30s ')", "type conversion error from 'string' to 'google.protobuf.Duration'")]
#[case("duration('1' + 'm30s ')", "type conversion error from 'string' to 'google.protobuf.Duration'")]
#[case("duration('9999999' + 'h')", "type conversion error from 'string' to 'google.protobuf.Duration'")]
#[case("timestamp('2026-01-01' + 't00:00:00z')", "type conversion error from 'string' to 'google.protobuf.Timestamp'")]
#[case("quantity(' ' + '1')", "quantities must match the regular expression")]
#[case("Pod{name: 'x'}", "ERROR: <input>:1:1: undeclared reference to 'Pod' (in container '')")]
#[case("@charge(1)", "ERROR: <input>:1:1: Syntax error: ")]
fn expressions_fail(#[case] source: &str, #[case] expected: &str) {
    let error = run(source).unwrap_err();
    assert!(error.starts_with(expected), "{error}");
}

#[rstest]
#[case("duration", "1h30m", true)]
#[case("duration", "10000000h", false)]
#[case("matches", "a{2}", true)]
#[case("matches", "a{2000}", false)]
#[case("timestamp", "2024-13-01T00:00:00Z", false)]
fn function_arguments_are_validated(#[case] function: &str, #[case] text: &str, #[case] expected: bool) {
    assert_eq!(accepts_literal(function, text), expected);
}

#[test]
fn growing_results_are_charged() {
    // Each iteration doubles a text: 40 iterations would create a terabyte.
    let items: Vec<String> = (0..40).map(|index| index.to_string()).collect();
    let source = format!("[{}].map(x, self.name).join('{}')", items.join(", "), "-".repeat(60));
    assert!(run(&source).is_ok());
    let double = "'0123456789'".to_owned();
    let doubled = (0..40).fold(double, |text, _| format!("[{text}].map(t, t + t)[0]"));
    assert!(run(&doubled).is_err());
    let error = run("self.many.map(x, self.many.map(y, self.many))").unwrap_err();
    assert!(error.contains("cost limit exceeded"), "{error}");
}

#[test]
fn expressions_share_a_budget() {
    let program = Program::compile("self.all(x, self.all(y, true))").unwrap();
    let numbers: Vec<Cel> = (0..300).map(Cel::Int).collect();
    let mut budget = Budget::for_conditions();
    with_base_scope(|base| {
        let mut scope = base.new_inner_scope();
        scope.add_variable_from_value("self", Cel::List(Arc::new(numbers)));
        let mut outcomes = (0..50).map(|_| program.execute(&scope, &mut budget));
        assert_eq!(outcomes.next(), Some(Ok(Cel::Bool(true))));
        assert_eq!(outcomes.last(), Some(Err(Failure::Budget)));
    });
    assert!(budget.is_exhausted());
}

/// Deep enough to overflow the stack if they were not rejected.
#[test]
fn depth_is_bounded() {
    for source in [
        format!("self{}", ".a".repeat(20_000)),
        vec!["1"; 40_000].join("+"),
        "(".repeat(20_000) + "1" + &")".repeat(20_000),
        "[".repeat(20_000),
        "!".repeat(50_000) + "true",
        "-".repeat(50_000) + "1",
        "true ? ".repeat(10_000) + "1",
        format!("self{}", "[0]".repeat(20_000)),
    ] {
        let error = Program::compile(&source).unwrap_err();
        assert!(error.contains("expression recursion limit exceeded: 250"), "{error}");
    }
    // The maximum depth in each form of nesting.
    let longest = vec!["1"; 250].join("+");
    assert_eq!(run(&longest), Ok(json!(250)));
    let lists = format!("{}1{}", "[".repeat(80), "]".repeat(80));
    assert!(run(&lists).is_ok());
    let calls = format!("{}1{}", "dyn(".repeat(80), ")".repeat(80));
    assert_eq!(run(&calls), Ok(json!(1)));
    let fields = format!("self{}", ".?a".repeat(125));
    assert!(Program::compile(&fields).is_ok());
    let chosen = "false ? 1 : ".repeat(60) + "2";
    assert_eq!(run(&chosen), Ok(json!(2)));
    let conjunctions = vec!["self.number == 3"; 60].join(" && ");
    assert_eq!(run(&conjunctions), Ok(json!(true)));
}

/// Random sequences of tokens: most are not valid expressions.
fn tokens() -> impl Strategy<Value = String> {
    let token = prop::sample::select(vec![
        "self",
        "oldSelf",
        "x",
        "(",
        ")",
        "[",
        "]",
        "{",
        "}",
        ".",
        "?",
        ":",
        ",",
        "+",
        "-",
        "*",
        "/",
        "%",
        "!",
        "&&",
        "||",
        "==",
        "<",
        "in",
        "1",
        "1u",
        "0x1f",
        "1.5",
        "'a'",
        "\"b\"",
        "b'c'",
        "r'\\d'",
        "true",
        "null",
        "name",
        "texts",
        "map",
        "all",
        "exists",
        "filter",
        "size",
        "matches",
        "optional.of",
        "has",
        "Object",
        "JSONPatch",
        "a:",
        ".?",
        "[?",
        "optMap",
        "transformList",
        "duration",
        "timestamp",
        "dyn",
        "type",
        "'''",
        "//",
        "\n",
        "\\",
        "é",
    ]);
    prop::collection::vec(token, 0..14).prop_map(|all| all.join(" "))
}

proptest! {
    #[test]
    fn no_text_causes_a_panic(source in prop_oneof![tokens(), any::<String>()]) {
        let _ = run(&source);
        let _ = Program::compile_patch(&source);
        let _ = typing::check(&source, &typing::Declarations::default());
    }
}
