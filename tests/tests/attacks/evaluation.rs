//! Evaluates the result of a case, without input or output.

use std::collections::BTreeMap;

use crate::attacks::http1::Response;
use crate::attacks::recorder::RecordedRequest;
use crate::attacks::table::{Case, ExpectedArrival, ExpectedIdentity, Listener};
use crate::attacks::wire::{find, header, header_lines, lossy, values};

/// Secret value of the control plane that no response may contain, because none of the callers may read it.
pub const CANARY: &str = "the-canary-of-the-control-plane";
/// Text in the target of a request that is hidden in another request's body.
const SMUGGLED: &[u8] = b"smuggled";
/// Prefix of the extra fields that the product sends in addition to user, groups and UID.
const PRODUCT_EXTRA_PREFIX: &str = "impersonate-extra-authentication.kubernetes.io%2f";
const BEARER_SUBPROTOCOL: &[u8] = b"base64url.bearer.authorization";

/// Identity of a caller at a member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    pub user: String,
    /// Groups, without those that every API server adds.
    pub groups: Vec<String>,
    pub uid: String,
}

/// Identities and credentials of the callers and of the product.
#[derive(Debug, Default)]
pub struct Identities {
    /// Identities by the caller's name.
    pub callers: BTreeMap<String, Identity>,
    /// All credentials of callers.
    pub credentials: Vec<String>,
    /// Tokens by member with which the product impersonates users there.
    pub impersonators: BTreeMap<&'static str, String>,
}

/// Errors in the result of a case; empty if the result is as expected.
pub fn check_case(
    case: &Case,
    response: &Response,
    arrivals: &[RecordedRequest],
    identities: &Identities,
) -> Vec<String> {
    let mut errors = Vec::new();
    match case.expects(response.status) {
        Ok(true) => {}
        Ok(false) => errors.push(format!("status {} (expected {})", response.status, case.row.expect.status)),
        Err(error) => errors.push(format!("{error:#}")),
    }
    let contains = |text: &[u8]| find(&response.body, text).is_some();
    if contains(CANARY.as_bytes()) {
        errors.push("the response contains the value of a Secret".to_owned());
    }
    for text in case.row.expect.contains.iter().filter(|text| !contains(&case.fill(text))) {
        errors.push(format!("the response does not contain {:?}: {}", lossy(&case.fill(text)), lossy(&response.body)));
    }
    for text in case.row.expect.excludes.iter().filter(|text| contains(&case.fill(text))) {
        errors.push(format!("the response contains {:?}", lossy(&case.fill(text))));
    }
    let max = if case.listener.fans_out { usize::MAX } else { 1 };
    let (min, max) = match case.arrives() {
        "nothing" => (0, 0),
        "caller?" => (0, max),
        _ => (1, max),
    };
    if !(min..=max).contains(&arrivals.len()) {
        errors.push(format!("{} requests arrived (expected {})", arrivals.len(), case.arrives()));
    }
    let expected = match &case.row.expect.arrives {
        ExpectedArrival::Identity(ExpectedIdentity { user, groups, .. }) => {
            Some(Identity { user: user.clone(), groups: groups.clone(), uid: String::new() })
        }
        _ => identities.callers.get(&case.row.caller).cloned(),
    };
    let anonymous = || Identity { user: String::new(), groups: Vec::new(), uid: String::new() };
    let identity = expected.unwrap_or_else(anonymous);
    for recorded in arrivals {
        errors.extend(check_identity(&identity, recorded, identities));
        errors.extend(check_headers(recorded, identities, case));
        errors.extend(check_target(case, recorded));
    }
    errors.dedup();
    errors
}

/// Compares the identity in a recorded request with the expected one.
fn check_identity(identity: &Identity, recorded: &RecordedRequest, identities: &Identities) -> Vec<String> {
    let mut errors = Vec::new();
    let mut expect_values = |name: &str, expected: Vec<&str>| {
        let mut found = values(&recorded.head, name);
        found.sort();
        let mut expected: Vec<String> = expected.into_iter().map(str::to_owned).collect();
        expected.sort();
        if found != expected {
            errors.push(format!("{name}: {found:?} (expected {expected:?})"));
        }
    };
    expect_values("impersonate-user", vec![&identity.user]);
    expect_values("impersonate-group", identity.groups.iter().map(String::as_str).collect());
    let token = identities.impersonators.get(recorded.member).map(String::as_str).unwrap_or_default();
    let found = values(&recorded.head, "authorization");
    if found != [format!("Bearer {token}")] {
        // The token itself must not be logged.
        errors.push(format!("authorization: {} values, or not the member's own", found.len()));
    }
    for (name, value) in header_lines(&recorded.head).map(header) {
        let is_expected = match name.as_str() {
            "impersonate-user" | "impersonate-group" => true,
            "impersonate-uid" => value == identity.uid,
            name => {
                !name.starts_with("impersonate-")
                    || name.starts_with(PRODUCT_EXTRA_PREFIX) && !value.contains("root-of-all")
            }
        };
        if !is_expected {
            errors.push(format!("{name}: {value} is unexpected"));
        }
    }
    errors
}

/// Checks the framing and the headers of a recorded request: none may be a client's header that is not for the member.
fn check_headers(recorded: &RecordedRequest, identities: &Identities, case: &Case) -> Vec<String> {
    let mut errors = Vec::new();
    if let Some(error) = recorded.framing_error.as_ref().filter(|_| !case.row.expect.truncated) {
        errors.push(error.clone());
    }
    if lossy(&recorded.head).replace("\r\n", "").contains(['\r', '\n', '\0']) {
        errors.push("a bare CR, LF or NUL in the head".to_owned());
    }
    for (name, _) in header_lines(&recorded.head).chain(trailers(&recorded.body)).map(header) {
        if ["cookie", "proxy-authorization"].contains(&name.as_str()) || name.starts_with("x-remote-") {
            errors.push(format!("{name} arrived"));
        }
        let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
        if name.is_empty() || !name.bytes().all(is_token) {
            errors.push(format!("{name:?} is not a header name"));
        }
    }
    for (name, _) in trailers(&recorded.body).map(header) {
        if name.starts_with("impersonate-") || name == "authorization" {
            errors.push(format!("{name} arrived as a trailer"));
        }
    }
    let hosts = values(&recorded.head, "host");
    let expected_host = case.runtime_values.members.get(recorded.member).cloned().unwrap_or_default();
    if hosts != [expected_host.clone()] {
        errors.push(format!("host: {hosts:?} (expected {expected_host:?})"));
    }
    if find(&recorded.head.to_ascii_lowercase(), BEARER_SUBPROTOCOL).is_some() {
        errors.push("a bearer subprotocol arrived".to_owned());
    }
    if identities.credentials.iter().any(|credential| recorded.contains(credential.as_bytes())) {
        errors.push("a credential of a caller arrived".to_owned());
    }
    errors
}

/// Trailers of a chunked body.
fn trailers(body: &[u8]) -> impl Iterator<Item = &[u8]> {
    let last = b"0\r\n";
    let at = body.windows(last.len()).rposition(|part| part == last).unwrap_or(body.len());
    header_lines(&body[at..])
}

/// Checks that a recorded request has the method and target that were sent.
fn check_target(case: &Case, recorded: &RecordedRequest) -> Vec<String> {
    let mut errors = Vec::new();
    let first = recorded.head.split(|byte| *byte == b'\r').next().unwrap_or_default();
    if find(first, SMUGGLED).is_some() {
        errors.push("a smuggled request arrived".to_owned());
    }
    let mut words = first.split(|byte| *byte == b' ');
    let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let path = target.split(|byte| *byte == b'?').next().unwrap_or_default();
    let expected = case.fill(&case.row.method);
    let Listener { fans_out, .. } = case.listener;
    // The search for the members that have an object sends GET.
    if method != expected && !(fans_out && method == b"GET") {
        errors.push(format!("{} arrived for {}", lossy(method), lossy(&expected)));
    }
    // This search does not send all headers of the client.
    let is_search = find(&recorded.head, b"as=PartialObjectMetadata").is_some();
    let lines: Vec<String> =
        header_lines(&recorded.head).map(header).map(|(name, value)| name + ": " + &value).collect();
    for line in case.row.expect.carries.iter().map(|line| lossy(&case.fill(line))) {
        if !is_search && !lines.contains(&line) {
            errors.push(format!("{line:?} did not arrive"));
        }
    }
    for name in case.row.expect.lacks.iter().filter(|name| !values(&recorded.head, name).is_empty()) {
        errors.push(format!("{name} arrived"));
    }
    let has_own_target = case.row.target.is_some() || case.row.fields.is_some() || case.row.line.is_some();
    let expected: Vec<Vec<u8>> = match case.row.expect.arrives_at.as_slice() {
        [] if has_own_target || fans_out => return errors,
        [] => vec![case.path()],
        named => named.iter().map(|text| case.fill(text)).collect(),
    };
    if !expected.iter().any(|expected| expected == path) {
        let expected: Vec<String> = expected.iter().map(|path| lossy(path)).collect();
        errors.push(format!("requests {} (expected {expected:?})", lossy(path)));
    }
    errors
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rstest::rstest;
    use serde_json::json;

    use super::*;
    use crate::attacks::table::{RuntimeValues, cases};

    const HEAD: &str = "GET /api/v1/x HTTP/1.1\r\nauthorization: Bearer ours\r\nimpersonate-user: mallory\r\n\
        impersonate-group: crew\r\nhost: m1:443\r\n";

    /// Errors of a case with one recorded request.
    fn errors_in(head: &str, body: &str) -> Vec<String> {
        let row = json!({"id": "x", "path": "/api/v1/x", "listeners": ["aggregated"]});
        let runtime_values =
            RuntimeValues { members: [("m1", "m1:443".to_owned())].into(), ..RuntimeValues::default() };
        let all = cases(&[serde_json::from_value(row).unwrap()], &Arc::new(runtime_values)).unwrap();
        let mallory = Identity { user: "mallory".into(), groups: vec!["crew".into()], uid: "7".into() };
        let identities = Identities {
            callers: [("mallory".to_owned(), mallory)].into(),
            credentials: vec!["hers".to_owned()],
            impersonators: [("m1", "ours".to_owned())].into(),
        };
        let (head, body) = (format!("{head}\r\n").into_bytes(), body.as_bytes().to_vec());
        let recorded = RecordedRequest { member: "m1", head, body, framing_error: None, relayed: false };
        let response = Response { status: 200, ..Response::default() };
        check_case(&all[0], &response, &[recorded], &identities)
    }

    #[test]
    fn the_callers_own_request_has_no_errors() {
        assert_eq!(errors_in(HEAD, ""), Vec::<String>::new());
        let uid = format!("{HEAD}impersonate-uid: 7\r\n{PRODUCT_EXTRA_PREFIX}credential-id: x\r\n");
        assert_eq!(errors_in(&uid, "2\r\n{}\r\n0\r\n\r\n"), Vec::<String>::new());
    }

    #[rstest]
    #[case::without_a_user("impersonate-user: mallory\r\n", "", "impersonate-user: []")]
    #[case::as_another_user("user: mallory", "user: root", "[\"root\"]")]
    #[case::twice(
        "host: m1:443\r\n",
        "host: m1:443\r\nImpersonate-User: root\r\n",
        "impersonate-user: [\"mallory\", \"root\"]"
    )]
    #[case::without_groups("impersonate-group: crew\r\n", "", "impersonate-group: []")]
    #[case::with_an_additional_group("crew\r\n", "crew\r\nimpersonate-group: more\r\n", "\"more\"")]
    #[case::with_a_uid("host", "impersonate-uid: 0\r\nhost", "impersonate-uid: 0 is unexpected")]
    #[case::with_extra("host", "impersonate-extra-scopes: x\r\nhost", "is unexpected")]
    #[case::with_another_token("ours", "other", "not the member's own")]
    #[case::with_two_tokens("host", "Authorization: Bearer x\r\nhost", "authorization: 2 values")]
    #[case::with_a_credential("/x", "/x?hers", "a credential of a caller")]
    #[case::with_a_cookie("host", "Cookie: a=b\r\nhost", "cookie arrived")]
    #[case::with_a_front_proxy_header("host", "X-Remote-User: root\r\nhost", "x-remote-user arrived")]
    #[case::with_a_subprotocol(
        "host",
        "sec-websocket-protocol: base64url.bearer.authorization.k8s.io.e\r\nhost",
        "bearer"
    )]
    #[case::for_another_host("m1:443", "elsewhere", "host: [\"elsewhere\"]")]
    #[case::with_a_bare_line_feed("host", "x: a\nb\r\nhost", "bare")]
    #[case::by_another_method("GET", "DELETE", "DELETE arrived")]
    #[case::of_another_path("/api/v1/x", "/api/v1/y", "requests /api/v1/y")]
    #[case::smuggled("/x", "/x?smuggled", "smuggled")]
    fn requests_that_differ_from_the_callers_are_detected(
        #[case] part: &str,
        #[case] instead: &str,
        #[case] expected: &str,
    ) {
        let found = errors_in(&HEAD.replace(part, instead), "").join("; ");
        assert!(found.contains(expected), "{found}");
    }

    #[test]
    fn trailers_are_checked() {
        let found = errors_in(HEAD, "2\r\n{}\r\n0\r\nimpersonate-user: root\r\n\r\n").join("; ");
        assert!(found.contains("as a trailer"), "{found}");
    }
}
