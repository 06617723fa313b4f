//! Lua scripts: the functions they can use, conversion of results, errors and limits.

use rstest::rstest;
use serde_json::json;

use super::*;

#[test]
fn scripts_compile_or_report_an_error() {
    compile("function Retain(desired, observed) goto done ::done:: return desired end").expect("valid");
    // The script is not run.
    compile("error('run') while true do end").expect("valid");
    let long = format!("-- {}", "x".repeat(MAX_SCRIPT_BYTES));
    assert_eq!(
        compile(&long).expect_err("long").to_string(),
        "the script has 1048579 bytes; at most 1048576 are allowed"
    );
    compile("\u{1b}LJ\u{2}\n").expect_err("precompiled code");
}

#[rstest]
#[case::incomplete_function("function (", "<string> line:1(column:10) near '(':   syntax error")]
#[case::next_line("function Retain(desired\n end", "<string> line:2(column:4) near 'end':   syntax error")]
#[case::second_of_its_line("local a = (1) b (2) )", "<string> line:1(column:21) near ')':   syntax error")]
#[case::not_inside_a_word("local ending = 1 end", "<string> line:1(column:20) near 'end':   syntax error")]
#[case::a_string("local a \"b c\"", "<string> line:1(column:13) near 'b c':   syntax error")]
#[case::no_end("function Retain(desired)", "<string> at EOF:   syntax error")]
#[case::no_expression("x = ", "<string> at EOF:   syntax error")]
#[case::no_grammar("goto missing", "<string>:1: undefined label 'missing'")]
fn syntax_errors_have_a_position(#[case] script: &str, #[case] expected: &str) {
    assert_eq!(compile(script).expect_err("invalid").to_string(), expected);
}

#[test]
fn replicas_and_requirements() {
    let script = "local kube = require('kube')
        function GetReplicas(obj) return obj.spec.count, kube.accuratePodRequirements(obj.spec.template) end";
    let pod = json!({"nodeSelector": {"a": "b"}, "containers": [{"resources": {"requests": {"cpu": "100m"}}}]});
    let object = json!({"spec": {"count": 6, "template": {"spec": pod}}});
    let (count, requirements) = replicas(script, &object).expect("a result");
    assert_eq!(
        (count, json!(requirements)),
        (6, json!({"nodeClaim": {"nodeSelector": {"a": "b"}}, "resourceRequest": {"cpu": "100m"}}))
    );
    let count_only = "function GetReplicas(obj) return 3 end";
    assert_eq!(replicas(count_only, &object).expect("a result"), (3, None));
    let empty = "function GetReplicas(obj) return 3, {nodeClaim = {}, resourceRequest = {cpu = '1'}} end";
    let (_, requirements) = replicas(empty, &object).expect("a result");
    assert_eq!(json!(requirements), json!({"resourceRequest": {"cpu": "1"}}));
}

#[test]
fn empty_tables_keep_their_type() {
    let desired = json!({"metadata": {"annotations": {}}, "spec": {"args": [], "volumes": [{"emptyDir": {}}], "n": 1}});
    let observed = json!({"spec": {"local": "kept", "node": {}, "share": 0.5}});
    let script = "function Retain(desired, observed)
        desired.spec['local'] = observed.spec['local']
        desired.spec.node = observed.spec.node
        desired.spec.share = observed.spec.share
        desired.spec.empty = {}
        desired.spec.n = desired.spec.n * 4 / 2
        return desired
    end";
    let expected = json!({"metadata": {"annotations": {}}, "spec": {"args": [], "volumes": [{"emptyDir": {}}], "n": 2,
        "local": "kept", "node": {}, "share": 0.5}});
    assert_eq!(retain(script, &desired, &observed).expect("an object"), expected);
}

/// Values that a script keeps, moves or copies retain their type, exact number and nulls.
#[rstest]
#[case::inserted("table.insert(desired.steps, 2, {weight = 20})",
    json!({"steps": [{"weight": 5}, {"weight": 20}, {"pause": {}}, {"templates": []}, null], "seed": 9_007_199_254_740_993_i64}))]
#[case::removed("table.remove(desired.steps, 1)",
    json!({"steps": [{"pause": {}}, {"templates": []}, null], "seed": 9_007_199_254_740_993_i64}))]
#[case::emptied("while #desired.steps > 0 do table.remove(desired.steps) end",
    json!({"steps": [], "seed": 9_007_199_254_740_993_i64}))]
#[case::moved("desired.first = desired.steps[2] desired.steps = nil", json!({"first": {"pause": {}}, "seed": 9_007_199_254_740_993_i64}))]
#[case::renamed("desired.other = desired.seed desired.seed = 1 desired.steps = nil", json!({"other": 9_007_199_254_740_993_i64, "seed": 1}))]
#[case::from_the_member("desired.steps = nil desired.seed = observed.seed desired.none = observed.none",
    json!({"seed": i64::MAX, "none": {"a": null}}))]
#[case::copied("local copy = {} for i, step in ipairs(desired.steps) do copy[i] = step end desired.steps = copy",
    json!({"steps": [{"weight": 5}, {"pause": {}}, {"templates": []}, null], "seed": 9_007_199_254_740_993_i64}))]
#[case::new_where_another_item_has_it("desired.steps = {{pause = {}}, {templates = {}}}",
    json!({"steps": [{"pause": {}}, {"templates": []}], "seed": 9_007_199_254_740_993_i64}))]
#[case::emptied_by_a_new_one("desired.steps = {}", json!({"steps": [], "seed": 9_007_199_254_740_993_i64}))]
#[case::new("desired.steps = nil desired.fresh = {}", json!({"seed": 9_007_199_254_740_993_i64}))]
#[case::computed("desired.steps = nil desired.seed = 2 ^ 40 + 1", json!({"seed": 1_099_511_627_777_i64}))]
fn values_are_preserved(#[case] change: &str, #[case] expected: Json) {
    let steps = json!([{"weight": 5}, {"pause": {}}, {"templates": []}, null]);
    let desired = json!({"steps": steps, "seed": 9_007_199_254_740_993_i64});
    let observed = json!({"seed": i64::MAX, "none": {"a": null}});
    let script = format!("function Retain(desired, observed) {change} return desired end");
    assert_eq!(retain(&script, &desired, &observed).expect("an object"), expected);
}

/// Integers with the same nearest double are distinguished in any position of the result.
#[rstest]
#[case::kept("return d", json!({"a": 9_007_199_254_740_993_i64, "b": 9_007_199_254_740_992_i64, "c": u64::MAX, "d": 0.1}))]
#[case::copied("return {b = d.b, a = d.a, c = d.c, d = d.d}",
    json!({"a": 9_007_199_254_740_993_i64, "b": 9_007_199_254_740_992_i64, "c": u64::MAX, "d": 0.1}))]
#[case::exchanged("d.a, d.b = d.b, d.a return d",
    json!({"a": 9_007_199_254_740_992_i64, "b": 9_007_199_254_740_993_i64, "c": u64::MAX, "d": 0.1}))]
#[case::from_the_member("d.a = o.a d.c = o.c return d",
    json!({"a": 9_007_199_254_740_994_i64, "b": 9_007_199_254_740_992_i64, "c": i64::MIN, "d": 0.1}))]
#[case::in_new_fields("return {list = {d.a, d.b, o.a, o.c}, different = d.a ~= d.b}",
    json!({"list": [9_007_199_254_740_993_i64, 9_007_199_254_740_992_i64, 9_007_199_254_740_994_i64, i64::MIN],
           "different": true}))]
fn numbers_with_the_same_double_are_distinguished(#[case] body: &str, #[case] expected: Json) {
    let desired = json!({"a": 9_007_199_254_740_993_i64, "b": 9_007_199_254_740_992_i64, "c": u64::MAX, "d": 0.1});
    let observed = json!({"a": 9_007_199_254_740_994_i64, "c": i64::MIN});
    let script = format!("function Retain(d, o) {body} end");
    assert_eq!(retain(&script, &desired, &observed).expect("an object"), expected);
}

#[test]
fn aggregated_status_and_dependencies() {
    let items: Vec<AggregatedStatusItem> = serde_json::from_value(json!([
        {"clusterName": "m1", "status": {"ready": 2}}, {"clusterName": "m2", "status": {"ready": 1}},
        {"clusterName": "m3"},
    ]))
    .expect("items");
    let script = "function AggregateStatus(obj, items)
        local ready = 0
        for _, item in ipairs(items) do if item.status ~= nil then ready = ready + item.status.ready end end
        obj.status = {ready = ready}
        return obj
    end";
    let aggregated = aggregate(script, &json!({"kind": "Gadget"}), &items).expect("an object");
    assert_eq!(aggregated, json!({"kind": "Gadget", "status": {"ready": 3}}));

    // Empty lists are those of the template.
    let template = json!({"kind": "Gadget", "status": {"inventory": {"entries": []}}});
    let kept = "function AggregateStatus(obj, items) return obj end";
    let replaced = "function AggregateStatus(obj, items) obj.status = {inventory = {entries = {}}} return obj end";
    for script in [kept, replaced] {
        assert_eq!(aggregate(script, &template, &items).expect("an object"), template);
    }

    let containers = json!([{"envFrom": [{"secretRef": {"name": "s"}}]}]);
    let pod = json!({"metadata": {}, "spec": {"template": {"spec": {"containers": containers}}}});
    let secret = |namespace: &str| json!([{"apiVersion": "v1", "kind": "Secret", "namespace": namespace, "name": "s"}]);
    for (namespace, expected) in [
        ("nil", secret("default")),
        ("obj.metadata.namespace", secret("default")),
        ("'shop'", secret("shop")),
        ("7", secret("7")),
        ("''", json!([{"apiVersion": "v1", "kind": "Secret", "name": "s"}])),
    ] {
        let script = format!(
            "function GetDependencies(obj)
                return require('kube').getPodDependencies(obj.spec.template, {namespace})
            end"
        );
        assert_eq!(json!(dependencies(&script, &pod).expect("a list")), expected, "{namespace}");
    }
    assert_eq!(dependencies("function GetDependencies() return {} end", &pod).expect("a list"), []);
    let parts = "function GetComponents(obj) return {{name = 'head', replicas = 1, replicaRequirements = {}}} end";
    assert_eq!(json!(components(parts, &pod).expect("a list")), json!([{"name": "head", "replicas": 1}]));
    assert_eq!(components("function GetComponents() end", &pod).expect("none"), []);
    assert!(health("function InterpretHealth(obj) return obj.spec ~= nil end", &pod).expect("a result"));
    let script = "function ReflectStatus(obj) return {phase = obj.status.phase, load = obj.status.load} end";
    let member = json!({"status": {"phase": "Up", "load": {}, "more": 1}});
    assert_eq!(reflect(script, &member).expect("a status"), json!({"phase": "Up", "load": {}}));
    assert_eq!(
        revise("function ReviseReplica(obj, n) obj.n = n return obj end", &json!({}), 4).expect("an object"),
        json!({"n": 4})
    );
}

#[rstest]
#[case::sums("kube.resourceAdd('1Gi', '512Mi', '1')", json!("1610612737"))]
#[case::sum_with_nil("kube.resourceAdd(nil, '512Mi', nil)", json!("512Mi"))]
#[case::sum_of_nothing("{kube.resourceAdd(), kube.resourceAdd(nil)}", json!(["0", "0"]))]
#[case::amount("kube.getResourceQuantity('1500m')", json!(1.5))]
#[case::whole("kube.getResourceQuantity('2')", json!(2))]
#[case::amount_of_nil("kube.getResourceQuantity(nil)", json!(0))]
#[case::numbers("{6 / 2, 7 / 2, -1, 2 ^ 40}", json!([3, 3.5, -1, 1_099_511_627_776_i64]))]
#[case::time("type(os.time()) .. type(os.date())", json!("numberstring"))]
#[case::libraries("unpack({string.upper('a')}) .. #table.concat({'x'}) .. math.max(1, 2)", json!("A12"))]
#[case::nothing_dangerous("{tostring(io), tostring(coroutine), tostring(os.execute), tostring(debug), tostring(string.dump)}",
    json!(["nil", "nil", "nil", "nil", "nil"]))]
fn expressions_are_evaluated(#[case] expression: &str, #[case] expected: Json) {
    let script = format!("local kube = require('kube') function ReflectStatus() return {{v = {expression}}} end");
    assert_eq!(reflect(&script, &json!({})).expect("a status"), json!({"v": expected}));
}

#[rstest]
#[case::absent("function Other() end", "not found function ReflectStatus")]
#[case::wrong_type("function ReflectStatus() return 1 end", "expect the returned replica type is table but got number")]
#[case::not_supported(
    "function ReflectStatus(obj) local status = rawget(obj, 'status') return status end",
    "<string>:1: call function rawget is not supported in karmada customized resourceinterpreter."
)]
#[case::not_supported_on_load(
    "load('x')",
    "<string>:1: call function load is not supported in karmada customized resourceinterpreter."
)]
#[case::a_number_is_no_quantity(
    "function ReflectStatus() return {require('kube').resourceAdd('1', 2)} end",
    "bad argument #2 to resourceAdd (string expected, got number)"
)]
#[case::two_quantities(
    "function ReflectStatus() return {require('kube').getResourceQuantity('1', '2')} end",
    "getResourceQuantity only accepts one argument"
)]
#[case::no_namespace(
    "function ReflectStatus() return require('kube').getPodDependencies({}) end",
    "getPodDependencies only accepts two argument"
)]
#[case::no_template(
    "function ReflectStatus() return require('kube').accuratePodRequirements(nil) end",
    "bad argument #1 to accuratePodRequirements (table expected, got nil)"
)]
#[case::raised(
    "function ReflectStatus(obj) return obj.a.b end",
    "<string>:1: attempt to index field 'a' (a nil value)"
)]
#[case::sparse("function ReflectStatus() return {[1] = 1, [5] = 2} end", "cannot encode sparse array")]
#[case::mixed("function ReflectStatus() return {1, a = 2} end", "cannot encode mixed or invalid key types")]
#[case::nested(
    "function ReflectStatus() local t = {} t.t = t return t end",
    "cannot encode recursively nested tables to JSON"
)]
#[case::no_number("function ReflectStatus() return {a = 0 / 0} end", "cannot encode NaN to JSON")]
#[case::module("require('socket')", "module socket not found")]
#[case::quantity(
    "function ReflectStatus() return {require('kube').getResourceQuantity('-1')} end",
    "quantity -1 is not a positive number"
)]
fn invalid_scripts_and_results_are_errors(#[case] script: &str, #[case] expected: &str) {
    assert_eq!(reflect(script, &json!({})).expect_err("no status").to_string(), expected);
}

#[test]
fn invalid_results_are_errors() {
    let object = json!({});
    let message_of = |result: Result<(), ScriptError>| result.expect_err("an error").to_string();
    let table = "expect the returned requires type is table but got nil";
    assert_eq!(message_of(revise("function ReviseReplica() end", &object, 1).map(drop)), table);
    assert_eq!(message_of(retain("function Retain() end", &object, &object).map(drop)), table);
    assert_eq!(message_of(aggregate("function AggregateStatus() end", &object, &[]).map(drop)), table);
    assert_eq!(message_of(dependencies("function GetDependencies() end", &object).map(drop)), table);
    assert_eq!(
        message_of(components("function GetComponents() return 1 end", &object).map(drop)),
        "expected result type 'table' or 'nil' from GetComponents, but got 'number'"
    );
    assert_eq!(
        message_of(
            dependencies("function GetDependencies() return {{kind = 'Secret', name = 's'}} end", &object).map(drop)
        ),
        "dependencies[0].apiVersion: Invalid value: \"\": missing required apiVersion"
    );
}

#[rstest]
#[case::endless("function ReflectStatus() while true do end end")]
#[case::endless_on_load("while true do end")]
#[case::endless_with_pcall(
    "local function again() while true do end end
     function ReflectStatus() while true do pcall(again) xpcall(again, print) end end"
)]
#[case::endless_recursion_of_calls(
    "local function again() pcall(again) while true do pcall(again) end end
     function ReflectStatus() again() end"
)]
fn time_is_limited(#[case] script: &str) {
    let message = reflect(script, &json!({})).expect_err("no status").to_string();
    assert!(message.contains("context deadline exceeded"), "{message}");
}

#[test]
fn memory_is_limited() {
    let script =
        "function ReflectStatus() local t = {} while true do t[#t + 1] = string.rep('x', 1000000) .. #t end end";
    assert_eq!(reflect(script, &json!({})).expect_err("no status").to_string(), "not enough memory");
}

#[test]
fn calls_share_no_state() {
    let script = "seen = (seen or 0) + 1 string.seen = (string.seen or 0) + 1
        function ReflectStatus() return {seen, string.seen} end";
    for _ in 0..2 {
        assert_eq!(reflect(script, &json!({})).expect("a status"), json!([1, 1]));
    }
}
