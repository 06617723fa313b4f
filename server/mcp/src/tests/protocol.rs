//! Initialization in both eras of the protocol, errors, HTTP headers, and standard input and output.

use crowsnest_apimachinery::status::ApiError;
use futures::future::BoxFuture;
use http::{HeaderMap, HeaderName};
use rstest::rstest;
use serde_json::{Value, json};

use super::{PreparedApi, call};
use crate::message::{
    HEADER_MISMATCH, INVALID_PARAMS, INVALID_REQUEST, METHOD_NOT_FOUND, Message, PARSE_ERROR, TOO_MANY_REQUESTS,
    UNSUPPORTED_PROTOCOL_VERSION,
};
use crate::stdio::MAX_CONCURRENT_REQUESTS;
use crate::{Api, ApiRequest, ApiResponse};

fn meta() -> Value {
    json!({"io.modelcontextprotocol/protocolVersion": "2026-07-28", "io.modelcontextprotocol/clientCapabilities": {}})
}

#[rstest]
#[case("2025-11-25", "2025-11-25")]
#[case("2025-06-18", "2025-06-18")]
#[case::older("2024-11-05", "2025-11-25")]
#[case::newer("2027-01-01", "2025-11-25")]
#[tokio::test]
async fn a_handshake_agrees_on_a_version(#[case] requested: &str, #[case] expected: &str) {
    let params = json!({"protocolVersion": requested, "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}});
    let result = call(&PreparedApi::default(), "initialize", params).await.unwrap();
    assert_eq!(result["protocolVersion"], expected);
    assert_eq!(
        (&result["serverInfo"]["name"], result["capabilities"]["tools"].is_object()),
        (&json!("crowsnest"), true)
    );
    assert_eq!(result.get("resultType"), None);
}

#[tokio::test]
async fn requests_with_a_version_need_no_handshake() {
    let api = PreparedApi::default();
    let result = call(&api, "server/discover", json!({"_meta": meta()})).await.unwrap();
    assert_eq!((&result["resultType"], &result["cacheScope"]), (&json!("complete"), &json!("public")));
    assert_eq!(result["supportedVersions"][0], "2026-07-28");
    let modern = call(&api, "tools/list", json!({"_meta": meta()})).await.unwrap();
    let legacy = call(&api, "tools/list", json!({})).await.unwrap();
    assert_eq!(modern["tools"], legacy["tools"]);
    assert_eq!(
        (modern["ttlMs"].as_u64().unwrap() > 0, legacy.get("ttlMs"), legacy.get("resultType")),
        (true, None, None)
    );
}

#[rstest]
#[case::unknown_version("tools/list", json!({"_meta": {"io.modelcontextprotocol/protocolVersion": "1900-01-01"}}), UNSUPPORTED_PROTOCOL_VERSION)]
#[case::no_capabilities("tools/list", json!({"_meta": {"io.modelcontextprotocol/protocolVersion": "2026-07-28"}}), INVALID_PARAMS)]
#[case::initialize_is_legacy("initialize", json!({"_meta": meta(), "protocolVersion": "2026-07-28"}), METHOD_NOT_FOUND)]
#[case::discover_is_modern("server/discover", json!({}), METHOD_NOT_FOUND)]
#[case::unknown_method("tools/delete", json!({}), METHOD_NOT_FOUND)]
#[case::unknown_tool("tools/call", json!({"name": "delete"}), INVALID_PARAMS)]
#[case::wrong_arguments("tools/call", json!({"name": "search", "arguments": []}), INVALID_PARAMS)]
#[case::foreign_cursor("tools/call", json!({"name": "search", "arguments": {"cursor": "abc"}}), INVALID_PARAMS)]
#[case::cursor_of_a_list("tools/list", json!({"cursor": "abc"}), INVALID_PARAMS)]
#[case::unknown_resource("resources/read", json!({"uri": "file:///etc/passwd"}), crate::message::RESOURCE_NOT_FOUND)]
#[case::unknown_resource_in_2026("resources/read", json!({"uri": "x:y", "_meta": meta()}), INVALID_PARAMS)]
#[case::unknown_prompt("prompts/get", json!({"name": "x"}), INVALID_PARAMS)]
#[case::missing_argument("prompts/get", json!({"name": "why-moved"}), INVALID_PARAMS)]
#[tokio::test]
async fn protocol_violations_have_error_codes(#[case] method: &str, #[case] params: Value, #[case] code: i64) {
    assert_eq!(call(&PreparedApi::default(), method, params).await.unwrap_err().code, code);
}

#[rstest]
#[case::no_json("{", PARSE_ERROR)]
#[case::batch("[]", INVALID_REQUEST)]
#[case::version(r#"{"id":1,"method":"ping"}"#, INVALID_REQUEST)]
#[case::null_id(r#"{"jsonrpc":"2.0","id":null,"method":"ping"}"#, INVALID_REQUEST)]
#[case::fractional_id(r#"{"jsonrpc":"2.0","id":1.5,"method":"ping"}"#, INVALID_REQUEST)]
#[case::method(r#"{"jsonrpc":"2.0","id":1,"method":5}"#, INVALID_REQUEST)]
#[case::params(r#"{"jsonrpc":"2.0","id":1,"method":"ping","params":[]}"#, INVALID_REQUEST)]
fn invalid_messages_have_error_codes(#[case] text: &str, #[case] code: i64) {
    assert_eq!(Message::parse(text.as_bytes()).unwrap_err().1.code, code);
}

#[tokio::test]
async fn lists_are_small_and_complete() {
    let api = PreparedApi::default();
    let tools = call(&api, "tools/list", json!({})).await.unwrap();
    let names: Vec<&str> = tools["tools"].as_array().unwrap().iter().filter_map(|tool| tool["name"].as_str()).collect();
    assert_eq!(names, ["search", "get", "history", "related", "logs", "explain", "plan", "who_can"]);
    assert!(tools["tools"].as_array().unwrap().iter().all(|tool| tool["annotations"]["readOnlyHint"] == true));
    assert!(tools.to_string().len() <= 12 << 10, "{} bytes", tools.to_string().len());
    let again = call(&PreparedApi::new(&[("/query", json!({}))]), "tools/list", json!({})).await.unwrap();
    assert_eq!(tools.to_string(), again.to_string());
    let prompts = call(&api, "prompts/list", json!({})).await.unwrap();
    assert_eq!(prompts["prompts"].as_array().unwrap().len(), 3);
    let params = json!({"name": "access-review", "arguments": {"verb": "get", "resource": "secrets"}});
    let prompt = call(&api, "prompts/get", params).await.unwrap();
    assert!(prompt["messages"][0]["content"]["text"].as_str().unwrap().contains("may \"get\" \"secrets\""), "{prompt}");
}

#[tokio::test]
async fn resources_can_be_read() {
    let api = PreparedApi::new(&[("/status", json!({"clusters": [{"name": "m1", "ready": true}]}))]);
    let page =
        call(&api, "resources/read", json!({"uri": "crowsnest://query-language", "_meta": meta()})).await.unwrap();
    assert!(page["contents"][0]["text"].as_str().unwrap().starts_with("# The query language"));
    assert_eq!(page["cacheScope"], "public");
    let status = call(&api, "resources/read", json!({"uri": "crowsnest://status", "_meta": meta()})).await.unwrap();
    assert!(status["contents"][0]["text"].as_str().unwrap().contains(".clusters[0].name\tm1"), "{status}");
    assert_eq!((&status["cacheScope"], &status["ttlMs"]), (&json!("private"), &json!(0)));
}

fn headers(pairs: &[(&str, &str)]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in pairs {
        headers.append(HeaderName::try_from(*name).unwrap(), value.parse().unwrap());
    }
    headers
}

const JSON: (&str, &str) = ("content-type", "application/json");
const VERSION: (&str, &str) = ("mcp-protocol-version", "2026-07-28");

#[rstest]
#[case::modern(&[JSON, VERSION, ("mcp-method", "tools/list")], "tools/list", json!({"_meta": meta()}), 200, 0)]
#[case::modern_with_name(&[JSON, VERSION, ("mcp-method", "prompts/get"), ("mcp-name", "triage")], "prompts/get", json!({"name": "triage", "_meta": meta()}), 200, 0)]
#[case::no_version(&[JSON, ("mcp-method", "tools/list")], "tools/list", json!({"_meta": meta()}), 400, HEADER_MISMATCH)]
#[case::other_version(&[JSON, ("mcp-protocol-version", "2025-11-25"), ("mcp-method", "tools/list")], "tools/list", json!({"_meta": meta()}), 400, HEADER_MISMATCH)]
#[case::version_in_header_only(&[JSON, VERSION], "tools/list", json!({}), 400, INVALID_PARAMS)]
#[case::no_capabilities(&[JSON, VERSION, ("mcp-method", "tools/list")], "tools/list", json!({"_meta": {"io.modelcontextprotocol/protocolVersion": "2026-07-28"}}), 400, INVALID_PARAMS)]
#[case::no_method(&[JSON, VERSION], "tools/list", json!({"_meta": meta()}), 400, HEADER_MISMATCH)]
#[case::other_method(&[JSON, VERSION, ("mcp-method", "tools/call")], "tools/list", json!({"_meta": meta()}), 400, HEADER_MISMATCH)]
#[case::no_name(&[JSON, VERSION, ("mcp-method", "prompts/get")], "prompts/get", json!({"name": "triage", "_meta": meta()}), 400, HEADER_MISMATCH)]
#[case::other_name(&[JSON, VERSION, ("mcp-method", "prompts/get"), ("mcp-name", "x")], "prompts/get", json!({"name": "triage", "_meta": meta()}), 400, HEADER_MISMATCH)]
#[case::two_methods(&[JSON, VERSION, ("mcp-method", "tools/list"), ("mcp-method", "tools/list")], "tools/list", json!({"_meta": meta()}), 400, HEADER_MISMATCH)]
#[case::unknown_version(&[JSON, ("mcp-protocol-version", "1900-01-01"), ("mcp-method", "tools/list")], "tools/list", json!({"_meta": {"io.modelcontextprotocol/protocolVersion": "1900-01-01"}}), 400, UNSUPPORTED_PROTOCOL_VERSION)]
#[case::unknown_method(&[JSON, VERSION, ("mcp-method", "ping")], "ping", json!({"_meta": meta()}), 404, METHOD_NOT_FOUND)]
#[case::legacy(&[JSON], "ping", json!({}), 200, 0)]
#[case::legacy_with_version(&[JSON, ("mcp-protocol-version", "2025-06-18")], "ping", json!({}), 200, 0)]
#[case::legacy_unknown_version(&[JSON, ("mcp-protocol-version", "1999-01-01")], "ping", json!({}), 400, UNSUPPORTED_PROTOCOL_VERSION)]
#[case::legacy_unknown_method(&[JSON], "x", json!({}), 200, METHOD_NOT_FOUND)]
#[case::no_media_type(&[], "ping", json!({}), 200, 0)]
#[case::media_type(&[("content-type", "text/plain")], "ping", json!({}), 415, 0)]
#[tokio::test]
async fn headers_must_match_the_body(
    #[case] sent: &[(&str, &str)],
    #[case] method: &str,
    #[case] params: Value,
    #[case] status: u16,
    #[case] code: i64,
) {
    let body = json!({"jsonrpc": "2.0", "id": 7, "method": method, "params": params}).to_string();
    let response = crate::http::handle_post(&PreparedApi::default(), &headers(sent), body.as_bytes()).await;
    let body = response.body.unwrap_or_default();
    let found = body["error"]["code"].as_i64().unwrap_or_default();
    assert_eq!((response.status.as_u16(), found), (status, code), "{body}");
}

#[tokio::test]
async fn unsupported_versions_are_answered_with_the_supported_ones() {
    let params = json!({"_meta": {"io.modelcontextprotocol/protocolVersion": "1900-01-01"}});
    let error = call(&PreparedApi::default(), "tools/list", params).await.unwrap_err();
    let supported = ["2026-07-28", "2025-11-25", "2025-06-18", "2025-03-26"];
    assert_eq!(error.data, Some(json!({"supported": supported, "requested": "1900-01-01"})));
}

/// Only lists and documents, which are equal for all callers, may be stored in shared caches.
#[tokio::test]
async fn only_lists_and_documents_are_public() {
    let api = PreparedApi::new(&[("/query", json!({"hits": [], "total": 0})), ("/status", json!({"clusters": []}))]);
    for method in ["server/discover", "tools/list", "resources/list", "resources/templates/list", "prompts/list"] {
        let result = call(&api, method, json!({"_meta": meta()})).await.unwrap();
        assert_eq!(result["cacheScope"], "public", "{method}");
    }
    for tool in ["search", "get", "history", "related", "logs", "explain", "plan", "who_can"] {
        let params = json!({"name": tool, "arguments": {}, "_meta": meta()});
        let result = call(&api, "tools/call", params).await.unwrap();
        assert!(result.get("cacheScope").is_none() && result.get("ttlMs").is_none(), "{tool}: {result}");
    }
    let status = call(&api, "resources/read", json!({"uri": "crowsnest://status", "_meta": meta()})).await.unwrap();
    assert_eq!(status["cacheScope"], "private");
}

/// Headers of a message over HTTP.
fn headers_of(method: &str, params: &Value) -> HeaderMap {
    let mut all = headers(&[JSON]);
    if let Some(version) = params["_meta"]["io.modelcontextprotocol/protocolVersion"].as_str() {
        let name = params["name"].as_str().or(params["uri"].as_str()).unwrap_or_default();
        all.extend(headers(&[("mcp-protocol-version", version), ("mcp-method", method), ("mcp-name", name)]));
    }
    all
}

#[rstest]
#[case::initialize("initialize", json!({"protocolVersion": "2025-11-25"}))]
#[case::ping("ping", json!({}))]
#[case::discover("server/discover", json!({"_meta": meta()}))]
#[case::tools("tools/list", json!({}))]
#[case::tools_in_2026("tools/list", json!({"_meta": meta()}))]
#[case::prompts("prompts/list", json!({}))]
#[case::prompt_in_2026("prompts/get", json!({"name": "triage", "_meta": meta()}))]
#[case::document("resources/read", json!({"uri": "crowsnest://query-language"}))]
#[case::document_in_2026("resources/read", json!({"uri": "crowsnest://query-language", "_meta": meta()}))]
#[case::unknown_document_in_2026("resources/read", json!({"uri": "x:y", "_meta": meta()}))]
#[case::search("tools/call", json!({"name": "search", "arguments": {"query": "web"}}))]
#[case::search_in_2026("tools/call", json!({"name": "search", "arguments": {"query": "web"}, "_meta": meta()}))]
#[case::refused("tools/call", json!({"name": "logs", "arguments": {"pod": "web-0"}}))]
#[case::invalid_argument("tools/call", json!({"name": "search", "arguments": {"limit": 0}}))]
#[case::unknown_tool("tools/call", json!({"name": "delete"}))]
#[case::foreign_cursor("tools/call", json!({"name": "search", "arguments": {"cursor": "abc"}}))]
#[case::unknown_method("tools/delete", json!({}))]
#[case::unknown_version("tools/list", json!({"_meta": {"io.modelcontextprotocol/protocolVersion": "1900-01-01"}}))]
#[tokio::test]
async fn both_transports_answer_alike(#[case] method: &str, #[case] params: Value) {
    let api = PreparedApi::new(&[("/query", json!({"hits": [{"cluster": "m1", "name": "web"}], "total": 1}))]);
    let message = json!({"jsonrpc": "2.0", "id": "a", "method": method, "params": params}).to_string();
    let over_http = crate::http::handle_post(&api, &headers_of(method, &params), message.as_bytes()).await;
    let mut output = Vec::new();
    crate::stdio::serve(&api, format!("{message}\n").as_bytes(), &mut output).await.unwrap();
    assert_eq!(String::from_utf8(output).unwrap(), format!("{}\n", over_http.body.unwrap()));
}

#[tokio::test]
async fn notifications_are_accepted_without_a_body() {
    let body = br#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;
    let response = crate::http::handle_post(&PreparedApi::default(), &headers(&[JSON]), body).await;
    assert_eq!((response.status.as_u16(), response.body), (202, None));
}

#[tokio::test]
async fn lines_except_notifications_are_answered() {
    let api = PreparedApi::default();
    let input = concat!(
        "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"initialize\",\"params\":{\"protocolVersion\":\"2025-11-25\"}}\n",
        "{\"jsonrpc\":\"2.0\",\"method\":\"notifications/initialized\"}\n\n",
        "no json\n",
        "LONG\n",
        "{\"jsonrpc\":\"2.0\",\"id\":\"b\",\"method\":\"tools/call\",\"params\":{\"name\":\"search\"}}\n",
    );
    let mut output = Vec::new();
    let input = input.replace("LONG", &"x".repeat(crate::message::MAX_MESSAGE_BYTES + 1));
    crate::stdio::serve(&api, input.as_bytes(), &mut output).await.unwrap();
    let text = String::from_utf8(output).unwrap();
    let responses: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let find = |id: Value| responses.iter().find(|response| response["id"] == id).unwrap();
    assert_eq!(responses.len(), 4, "{text}");
    assert_eq!(find(json!(1))["result"]["protocolVersion"], "2025-11-25");
    let codes: Vec<_> = responses.iter().filter_map(|response| response["error"]["code"].as_i64()).collect();
    assert_eq!(codes, [PARSE_ERROR, INVALID_REQUEST]);
    assert_eq!(find(json!("b"))["result"]["isError"], true);
}

/// An API that never responds.
struct SilentApi;

impl Api for SilentApi {
    fn send(&self, _: ApiRequest) -> BoxFuture<'_, Result<ApiResponse, ApiError>> {
        Box::pin(std::future::pending())
    }
}

#[tokio::test]
async fn lines_are_read_while_calls_run() {
    let call = |id: usize| json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": {"name": "search"}});
    let cancel =
        |id: usize| json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": id}});
    // The first call beyond the limit has the ID `MAX_CONCURRENT_REQUESTS`.
    let calls = (0..=MAX_CONCURRENT_REQUESTS).chain([3]).map(call);
    let lines: Vec<String> =
        calls.chain((0..MAX_CONCURRENT_REQUESTS).map(cancel)).map(|line| format!("{line}\n")).collect();
    let mut output = Vec::new();
    crate::stdio::serve(&SilentApi, lines.concat().as_bytes(), &mut output).await.unwrap();
    let text = String::from_utf8(output).unwrap();
    let responses: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let refused: Vec<_> =
        responses.iter().map(|response| (&response["id"], response["error"]["code"].as_i64())).collect();
    let expected = [(&json!(MAX_CONCURRENT_REQUESTS), Some(TOO_MANY_REQUESTS)), (&Value::Null, Some(INVALID_REQUEST))];
    assert_eq!(refused, expected, "{text}");
}
