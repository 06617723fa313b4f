//! Signing controller (`csrsigning` of kube-controller-manager): signs approved CertificateSigningRequests of the
//! Kubernetes signers with the server's authority if they meet the rules of their signer.

use std::collections::BTreeSet;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use crowsnest_api::certificate::check_requester;
use crowsnest_apimachinery::names::Gvr;
use crowsnest_apimachinery::status::ApiResult;
use crowsnest_apiserver::authn::SigningRequest;
use crowsnest_registry::authz::bootstrap::{loopback, loopback_options};
use crowsnest_registry::object::{Object, format_time};
use crowsnest_registry::reconcile::reconcile_on_change;
use crowsnest_registry::resource::ResourceRef;
use crowsnest_registry::storage::ResourceKey;
use crowsnest_registry::{Change, Edit};
use serde_json::{Value, json};

use crate::ApiServer;

const GROUP: &str = "certificates.k8s.io";
const PLURAL: &str = "certificatesigningrequests";
/// Maximum and minimum validity of certificates in seconds.
const MAX_VALIDITY_SECONDS: i64 = 365 * 24 * 3600;
const MIN_VALIDITY_SECONDS: i64 = 10 * 60;

/// Reconciles requests until the server stops.
pub async fn run(server: ApiServer) {
    let registry = server.registry();
    let Ok(resource) = registry.resource(&Gvr::new(GROUP, "v1", PLURAL)) else { return };
    let (table, error_message) = (ResourceKey::new(GROUP, PLURAL), "cannot process certificate signing requests");
    let reconcile = || reconcile_all(&server, &resource);
    reconcile_on_change(&registry.store, &table, &server.stop_token(), error_message, reconcile).await;
}

/// User who created a request, as recorded by the server.
#[derive(Debug, Clone, Default)]
struct Requester<'a> {
    name: &'a str,
    groups: Vec<&'a str>,
}

/// Checks a request by the rules of its signer; `None` for unknown signers, whose requests are not signed here.
fn verify(
    signer: &str,
    request: &SigningRequest,
    requester: &Requester<'_>,
    usages: &[&str],
) -> Option<Result<(), String>> {
    let verify_requester =
        || check_requester(&request.subject, requester.name, &requester.groups).map_err(|e| e.to_string());
    match signer {
        "kubernetes.io/kube-apiserver-client" => Some(verify_client(usages).and_then(|()| verify_requester())),
        "kubernetes.io/kube-apiserver-client-kubelet" => Some(verify_kubelet(request, usages, "client auth")),
        "kubernetes.io/kubelet-serving" => Some(verify_kubelet(request, usages, "server auth")),
        "kubernetes.io/legacy-unknown" => Some(verify_requester()),
        _ => None,
    }
}

fn verify_client(usages: &[&str]) -> Result<(), String> {
    let allowed = ["digital signature", "key encipherment", "client auth"];
    if let Some(forbidden_usage) = usages.iter().find(|usage| !allowed.contains(usage)) {
        return Err(format!("invalid usage for client certificate: {forbidden_usage}"));
    }
    if !usages.contains(&"client auth") {
        return Err("missing required usage for client certificate: client auth".to_owned());
    }
    Ok(())
}

/// Checks a request for a kubelet's certificate; `auth` is `client auth` or `server auth`. Serving certificates need
/// alternative names, client certificates must have none. As in Kubernetes, the usages of serving certificates are
/// checked before the common name.
fn verify_kubelet(request: &SigningRequest, usages: &[&str], auth: &str) -> Result<(), String> {
    let is_serving = auth == "server auth";
    let fail = |reason: &str| Err(reason.to_owned());
    if request.subject.organizations() != ["system:nodes"] {
        return fail("subject organization is not system:nodes");
    }
    if is_serving && !request.has_dns_names() && !request.has_addresses() {
        return fail("DNS or IP subjectAltName is required");
    }
    if !is_serving && request.has_dns_names() {
        return fail("DNS subjectAltNames are not allowed");
    }
    if request.has_emails() {
        return fail("Email subjectAltNames are not allowed");
    }
    if !is_serving && request.has_addresses() {
        return fail("IP subjectAltNames are not allowed");
    }
    if request.has_uris() {
        return fail("URI subjectAltNames are not allowed");
    }
    let required = BTreeSet::from(["digital signature", "key encipherment", auth]);
    let mut requested: BTreeSet<&str> = usages.iter().copied().collect();
    // Key encipherment is optional, because keys other than RSA do not support it.
    requested.insert("key encipherment");
    let required_list: Vec<&str> = required.iter().copied().collect();
    let usages_result = match requested == required {
        true => Ok(()),
        false => Err(format!("usages did not match [{}]", required_list.join(" "))),
    };
    let name_result = match request.subject.common_name().is_some_and(|name| name.starts_with("system:node:")) {
        true => Ok(()),
        false => fail("subject common name does not begin with system:node:"),
    };
    if is_serving { usages_result.and(name_result) } else { name_result.and(usages_result) }
}

/// Processes the approved requests that are neither signed nor failed.
async fn reconcile_all(server: &ApiServer, resource: &ResourceRef) -> ApiResult<()> {
    for request in server.registry().list_all(resource).await? {
        let has_condition = |condition_type: &str| {
            let conditions = request["status"]["conditions"].as_array().into_iter().flatten();
            conditions.into_iter().any(|condition| condition["type"] == condition_type)
        };
        let is_signed = request["status"]["certificate"].as_str().is_some_and(|certificate| !certificate.is_empty());
        if is_signed || !has_condition("Approved") || has_condition("Denied") || has_condition("Failed") {
            continue;
        }
        // A request that fails must not block others.
        if let Err(error) = process_request(server, resource, &request).await {
            tracing::warn!(name = request.name(), %error, "cannot sign a certificate signing request");
        }
    }
    Ok(())
}

/// Signs a request if it meets the rules of its signer; otherwise marks it as failed.
async fn process_request(server: &ApiServer, resource: &ResourceRef, request: &Value) -> Result<(), String> {
    let spec = &request["spec"];
    let pem = STANDARD.decode(spec["request"].as_str().unwrap_or_default()).map_err(|error| error.to_string())?;
    let parsed = SigningRequest::parse(&pem).map_err(|reason| format!("unable to parse csr: {reason}"))?;
    let usages: Vec<&str> = spec["usages"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let requester = Requester {
        name: spec["username"].as_str().unwrap_or_default(),
        groups: spec["groups"].as_array().into_iter().flatten().filter_map(Value::as_str).collect(),
    };
    let signer = spec["signerName"].as_str().unwrap_or_default();
    let Some(verified) = verify(signer, &parsed, &requester, &usages) else { return Ok(()) };
    let now = jiff::Timestamp::now();
    let outcome = match verified {
        Err(reason) => Err(reason),
        Ok(()) => {
            let pem = String::from_utf8(pem).map_err(|error| error.to_string())?;
            let validity = validity_seconds(spec["expirationSeconds"].as_i64());
            let certificate = server.authority().sign(&pem, &usages, now.as_second(), validity);
            Ok(certificate.map_err(|error| format!("error auto signing csr: {error}"))?)
        }
    };
    write_status(server, resource, request, outcome, &format_time(now)).await.map_err(|error| error.to_string())
}

/// Validity of a certificate in seconds: as requested, within the limits.
fn validity_seconds(requested: Option<i64>) -> i64 {
    requested.map_or(MAX_VALIDITY_SECONDS, |seconds| seconds.clamp(MIN_VALIDITY_SECONDS, MAX_VALIDITY_SECONDS))
}

/// Writes the certificate, or the error as a `Failed` condition, to the status.
async fn write_status(
    server: &ApiServer,
    resource: &ResourceRef,
    request: &Value,
    outcome: Result<String, String>,
    now: &str,
) -> ApiResult<()> {
    let now = now.to_owned();
    let edit = Edit(Arc::new(move |request: &mut Value| {
        match &outcome {
            Ok(certificate) => request["status"]["certificate"] = STANDARD.encode(certificate).into(),
            Err(reason) => {
                let condition = json!({
                    "type": "Failed", "status": "True", "reason": "SignerValidationFailure", "message": reason,
                    "lastUpdateTime": now, "lastTransitionTime": now,
                });
                if let Some(conditions) = request["status"]["conditions"].as_array_mut() {
                    conditions.push(condition);
                }
            }
        }
        Ok(())
    }));
    let mut ctx = loopback("");
    ctx.subresource = "status".into();
    let change = Change::Edit(edit);
    server.registry().update(resource, &ctx, request.name(), &change, &loopback_options(), &mut Vec::new()).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crowsnest_api::certificate::{AlternativeName, CertificateSubject};
    use rstest::rstest;

    const CLIENT: &str = "kubernetes.io/kube-apiserver-client";
    const KUBELET: &str = "kubernetes.io/kube-apiserver-client-kubelet";
    const SERVING: &str = "kubernetes.io/kubelet-serving";

    #[rstest]
    #[case::client(CLIENT, "", "", "", "client auth", "")]
    #[case::client_with_all_usages(CLIENT, "any", "x", "dns uri", "digital signature,key encipherment,client auth", "")]
    #[case::client_serving(
        CLIENT,
        "",
        "",
        "",
        "client auth,server auth",
        "invalid usage for client certificate: server auth"
    )]
    #[case::client_without_client_auth(
        CLIENT,
        "",
        "",
        "",
        "digital signature",
        "missing required usage for client certificate: client auth"
    )]
    #[case::kubelet(KUBELET, "system:nodes", "system:node:n", "", "digital signature,key encipherment,client auth", "")]
    #[case::kubelet_not_rsa(KUBELET, "system:nodes", "system:node:n", "", "client auth,digital signature", "")]
    #[case::kubelet_masters(
        KUBELET,
        "system:nodes,system:masters",
        "system:node:n",
        "",
        "client auth,digital signature",
        "subject organization is not system:nodes"
    )]
    #[case::kubelet_dns(
        KUBELET,
        "system:nodes",
        "system:node:n",
        "dns ip",
        "client auth,digital signature",
        "DNS subjectAltNames are not allowed"
    )]
    #[case::kubelet_ip(
        KUBELET,
        "system:nodes",
        "system:node:n",
        "ip uri",
        "client auth,digital signature",
        "IP subjectAltNames are not allowed"
    )]
    #[case::kubelet_name(
        KUBELET,
        "system:nodes",
        "n",
        "",
        "any",
        "subject common name does not begin with system:node:"
    )]
    #[case::kubelet_usages(
        KUBELET,
        "system:nodes",
        "system:node:n",
        "",
        "digital signature,server auth",
        "usages did not match [client auth digital signature key encipherment]"
    )]
    #[case::serving(SERVING, "system:nodes", "system:node:n", "dns", "digital signature,server auth", "")]
    #[case::serving_without_names(
        SERVING,
        "system:nodes",
        "system:node:n",
        "",
        "digital signature,server auth",
        "DNS or IP subjectAltName is required"
    )]
    #[case::serving_email(
        SERVING,
        "system:nodes",
        "system:node:n",
        "ip email uri",
        "digital signature,server auth",
        "Email subjectAltNames are not allowed"
    )]
    #[case::serving_uri(
        SERVING,
        "system:nodes",
        "system:node:n",
        "ip uri",
        "digital signature,server auth",
        "URI subjectAltNames are not allowed"
    )]
    #[case::serving_usages(
        SERVING,
        "system:nodes",
        "n",
        "ip",
        "digital signature,client auth",
        "usages did not match [digital signature key encipherment server auth]"
    )]
    #[case::serving_name(
        SERVING,
        "system:nodes",
        "n",
        "ip",
        "digital signature,server auth",
        "subject common name does not begin with system:node:"
    )]
    #[case::legacy("kubernetes.io/legacy-unknown", "", "", "", "any", "")]
    fn requests_are_checked_by_the_rules_of_their_signer(
        #[case] signer: &str,
        #[case] organizations: &str,
        #[case] common_name: &str,
        #[case] names: &str,
        #[case] usages: &str,
        #[case] error: &str,
    ) {
        let request = request(common_name, organizations, names);
        let usages: Vec<&str> = usages.split(',').collect();
        let expected = if error.is_empty() { Ok(()) } else { Err(error.to_owned()) };
        assert_eq!(verify(signer, &request, &Requester::default(), &usages), Some(expected));
    }

    fn request(common_name: &str, organizations: &str, names: &str) -> SigningRequest {
        let groups: Vec<String> = organizations.split(',').filter(|o| !o.is_empty()).map(str::to_owned).collect();
        let names_by_kind = [
            ("dns", AlternativeName::Dns("x".into())),
            ("email", AlternativeName::Email("x".into())),
            ("ip", AlternativeName::Address([127, 0, 0, 1].into())),
            ("uri", AlternativeName::Uri("x".into())),
        ];
        let subject = match common_name {
            "" => CertificateSubject::default(),
            name => CertificateSubject::from_user(name, &groups).unwrap(),
        };
        let alternative_names =
            names_by_kind.into_iter().filter(|(kind, _)| names.contains(kind)).map(|(_, name)| name);
        SigningRequest { subject, alternative_names: alternative_names.collect(), ..SigningRequest::default() }
    }

    /// `check_requester` implements the rule; kubelet signers have their own rules.
    #[rstest]
    #[case::agent(CLIENT, "system:karmada:agent:m1", "system:karmada:agents", true)]
    #[case::front_proxy(CLIENT, "front-proxy-client", "", false)]
    #[case::masters(CLIENT, "ann", "system:masters", false)]
    #[case::admin(CLIENT, "system:admin", "admins", false)]
    #[case::node(CLIENT, "system:node:n1", "system:nodes", false)]
    #[case::legacy("kubernetes.io/legacy-unknown", "ann", "system:masters", false)]
    #[case::kubelet(KUBELET, "system:node:n1", "system:nodes", true)]
    #[case::kubelet_masters(KUBELET, "system:node:n1", "system:nodes,system:masters", false)]
    fn bootstrap_tokens_get_no_reserved_names(
        #[case] signer: &str,
        #[case] common_name: &str,
        #[case] organizations: &str,
        #[case] signed: bool,
    ) {
        let request = request(common_name, organizations, "");
        let requester = Requester { name: "system:bootstrap:abcdef", groups: vec!["system:bootstrappers"] };
        let usages = ["digital signature", "client auth"];
        let verified = verify(signer, &request, &requester, &usages).unwrap();
        assert_eq!(verified.is_ok(), signed, "{verified:?}");
    }

    #[rstest]
    #[case(None, MAX_VALIDITY_SECONDS)]
    #[case(Some(1), MIN_VALIDITY_SECONDS)]
    #[case(Some(3601), 3601)]
    #[case(Some(i64::from(i32::MAX)), MAX_VALIDITY_SECONDS)]
    fn validity_is_limited(#[case] requested: Option<i64>, #[case] expected: i64) {
        assert_eq!(validity_seconds(requested), expected);
    }

    #[test]
    fn unknown_signers_are_ignored() {
        assert_eq!(verify("example.com/x", &SigningRequest::default(), &Requester::default(), &[]), None);
    }
}
