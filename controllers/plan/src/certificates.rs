//! Decisions of the agent CSR approving controller: which CertificateSigningRequests are for an agent, and which
//! permission of the requester is sufficient to approve them. The control plane's signer signs approved requests.

use std::collections::BTreeSet;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
pub use crowsnest_api::certificate::agent_name;
use crowsnest_api::certificate::{Agent, SigningRequest};
use crowsnest_apimachinery::names::ClusterName;
use crowsnest_apimachinery::unstructured;
use serde_json::{Value, json};

const SIGNER: &str = "kubernetes.io/kube-apiserver-client";
const USAGES: [&str; 2] = ["digital signature", "client auth"];
/// Optional additional usage.
const KEY_ENCIPHERMENT: &str = "key encipherment";

/// Permission that the requester needs, and the message of the approval.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Permission {
    /// Subresource of `certificatesigningrequests` with the verb `create`.
    pub subresource: &'static str,
    pub message: &'static str,
}

/// Permission of an agent to renew its own certificate.
pub const RENEW_CERTIFICATE: Permission = Permission {
    subresource: "selfclusteragent",
    message: "Auto approving self karmada agent certificate after SubjectAccessReview.",
};

/// Permission of another user, usually of a bootstrap token, to request an agent's certificate.
pub const REQUEST_CERTIFICATE: Permission = Permission {
    subresource: "clusteragent",
    message: "Auto approving karmada agent certificate after SubjectAccessReview.",
};

/// Error of a CertificateSigningRequest that cannot be parsed. The message is Karmada's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CertificateError {
    #[error("unable to parse csr {name:?}: {error}")]
    Unparsable { name: String, error: String },
}

/// True if a request is not decided yet and is for the client certificate signer.
pub fn is_pending(request: &Value) -> bool {
    let conditions = unstructured::at(request, &["status", "conditions"]).and_then(Value::as_array);
    let is_decision = |condition: &Value| matches!(unstructured::text(condition, &["type"]), "Approved" | "Denied");
    unstructured::text(request, &["spec", "signerName"]) == SIGNER
        && unstructured::text(request, &["status", "certificate"]).is_empty()
        && !conditions.into_iter().flatten().any(is_decision)
}

/// Permissions, any one of which is sufficient to approve the requested agent certificate, in the order in which they
/// are checked. Empty for requests that are not for an agent.
pub fn permissions(request: &Value) -> Result<Vec<Permission>, CertificateError> {
    let signing_request = parse_signing_request(request)?;
    if agent(&signing_request).is_none() || !has_usages(request) {
        return Ok(Vec::new());
    }
    Ok(is_renewal(request, &signing_request)
        .then_some(RENEW_CERTIFICATE)
        .into_iter()
        .chain([REQUEST_CERTIFICATE])
        .collect())
}

/// The cluster that joins with a request: another user, usually of a bootstrap token, requests a certificate for the
/// cluster's agent. `None` if an agent requests its own certificate, or if the request names no cluster.
pub fn find_joining_cluster(request: &Value) -> Result<Option<ClusterName>, CertificateError> {
    let signing_request = parse_signing_request(request)?;
    Ok(match agent(&signing_request) {
        Some(Agent::Cluster(cluster)) if !is_renewal(request, &signing_request) => Some(cluster),
        _ => None,
    })
}

/// Body of the SubjectAccessReview for the requester of a CertificateSigningRequest.
pub fn access_review(request: &Value, permission: Permission) -> Value {
    let field_of = |field: &str| unstructured::at(request, &["spec", field]).cloned().unwrap_or_default();
    json!({
        "apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview",
        "spec": {
            "user": field_of("username"), "uid": field_of("uid"), "groups": field_of("groups"), "extra": field_of("extra"),
            "resourceAttributes": {
                "group": "certificates.k8s.io", "version": "*", "resource": "certificatesigningrequests",
                "subresource": permission.subresource, "verb": "create",
            },
        },
    })
}

/// The request with an `Approved` condition at time `now`.
pub fn approve(request: &Value, permission: Permission, now: &str) -> Value {
    let mut approved = request.clone();
    let conditions = unstructured::at(request, &["status", "conditions"]).and_then(Value::as_array);
    let mut conditions = conditions.cloned().unwrap_or_default();
    conditions.push(json!({
        "type": "Approved", "status": "True", "reason": "AutoApproved", "message": permission.message,
        "lastUpdateTime": now, "lastTransitionTime": now,
    }));
    unstructured::set(&mut approved, &["status", "conditions"], Value::Array(conditions));
    approved
}

fn parse_signing_request(request: &Value) -> Result<SigningRequest, CertificateError> {
    let parse_error =
        |error: String| CertificateError::Unparsable { name: unstructured::name(request).to_owned(), error };
    let pem =
        STANDARD.decode(unstructured::text(request, &["spec", "request"])).map_err(|e| parse_error(e.to_string()))?;
    SigningRequest::parse(&pem).map_err(|error| parse_error(error.to_string()))
}

/// The agent for which a certificate is requested; the request must have no subject alternative names.
fn agent(signing_request: &SigningRequest) -> Option<Agent> {
    Agent::from_subject(&signing_request.subject).filter(|_| signing_request.alternative_names.is_empty())
}

/// True if an agent requests its own certificate: the requester is the user in the subject.
fn is_renewal(request: &Value, signing_request: &SigningRequest) -> bool {
    signing_request.subject.common_name() == Some(unstructured::text(request, &["spec", "username"]))
}

/// True if the usages are exactly those of an agent's certificate.
fn has_usages(request: &Value) -> bool {
    let usages = unstructured::at(request, &["spec", "usages"]).and_then(Value::as_array);
    let mut usages: BTreeSet<&str> = usages.into_iter().flatten().filter_map(Value::as_str).collect();
    usages.remove(KEY_ENCIPHERMENT);
    usages == BTreeSet::from(USAGES)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair, SanType};
    use rstest::rstest;

    const AGENT: &str = "system:karmada:agent:member1";
    const ORGANIZATION: &str = crowsnest_api::certificate::AGENT_ORGANIZATION;

    fn pem(organizations: &[&str], common_name: &str, alternative_names: Vec<SanType>) -> String {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        for organization in organizations {
            params.distinguished_name.push(DnType::OrganizationName, *organization);
        }
        params.distinguished_name.push(DnType::CommonName, common_name);
        params.subject_alt_names = alternative_names;
        let key = KeyPair::generate().expect("a key");
        params.serialize_request(&key).expect("a request").pem().expect("PEM")
    }

    fn request(pem: &str, username: &str, usages: &[&str]) -> Value {
        json!({
            "metadata": {"name": "csr-1"},
            "spec": {
                "signerName": SIGNER, "request": STANDARD.encode(pem), "username": username, "usages": usages,
                "groups": ["system:authenticated"],
            },
        })
    }

    const CLIENT_USAGES: &[&str] = &["client auth", "digital signature"];

    #[rstest]
    #[case::bootstrap(&[ORGANIZATION], AGENT, "system:bootstrap:abcdef", CLIENT_USAGES, &[REQUEST_CERTIFICATE])]
    #[case::renewal(&[ORGANIZATION], AGENT, AGENT, CLIENT_USAGES, &[RENEW_CERTIFICATE, REQUEST_CERTIFICATE])]
    #[case::encipherment(
        &[ORGANIZATION], AGENT, "x", &["client auth", "digital signature", "key encipherment"], &[REQUEST_CERTIFICATE]
    )]
    #[case::missing_usage(&[ORGANIZATION], AGENT, "x", &["client auth"], &[])]
    #[case::extra_usage(&[ORGANIZATION], AGENT, "x", &["client auth", "digital signature", "server auth"], &[])]
    #[case::masters(&["system:masters"], AGENT, AGENT, CLIENT_USAGES, &[])]
    #[case::without_organization(&[], AGENT, AGENT, CLIENT_USAGES, &[])]
    #[case::not_an_agent(&[ORGANIZATION], "system:admin", "system:admin", CLIENT_USAGES, &[])]
    #[case::front_proxy(&[ORGANIZATION], "front-proxy-client", "system:bootstrap:abcdef", CLIENT_USAGES, &[])]
    #[case::with_invalid_cluster_name(&[ORGANIZATION], "system:karmada:agent:No Cluster", "system:bootstrap:abcdef", CLIENT_USAGES, &[])]
    #[case::control_plane(&[ORGANIZATION], "system:karmada:agent:@control-plane", "x", CLIENT_USAGES, &[])]
    fn agents_are_recognized(
        #[case] organizations: &[&str],
        #[case] common_name: &str,
        #[case] username: &str,
        #[case] usages: &[&str],
        #[case] expected: &[Permission],
    ) {
        let request = request(&pem(organizations, common_name, Vec::new()), username, usages);
        assert_eq!(permissions(&request).as_deref(), Ok(expected));
    }

    #[rstest]
    #[case::new(AGENT, "system:bootstrap:abcdef", Some("member1"))]
    #[case::renewal(AGENT, AGENT, None)]
    #[case::with_invalid_cluster_name("system:karmada:agent:No Cluster", "x", None)]
    #[case::control_plane("system:karmada:agent:@control-plane", "x", None)]
    #[case::no_agent("system:admin", "x", None)]
    #[case::karmadactl("system:karmada:agent:rbac-generator", "system:bootstrap:abcdef", None)]
    fn first_certificates_name_their_cluster(
        #[case] common_name: &str,
        #[case] username: &str,
        #[case] expected: Option<&str>,
    ) {
        let request = request(&pem(&[ORGANIZATION], common_name, Vec::new()), username, CLIENT_USAGES);
        assert_eq!(find_joining_cluster(&request).expect("a request").as_ref().map(ClusterName::as_str), expected);
    }

    #[rstest]
    #[case::dns(SanType::DnsName("example.com".try_into().expect("a name")))]
    #[case::email(SanType::Rfc822Name("a@example.com".try_into().expect("an address")))]
    #[case::ip(SanType::IpAddress([127, 0, 0, 1].into()))]
    #[case::uri(SanType::URI("spiffe://x/y".try_into().expect("a URI")))]
    fn alternative_names_are_rejected(#[case] name: SanType) {
        let request = request(&pem(&[ORGANIZATION], AGENT, vec![name]), AGENT, CLIENT_USAGES);
        assert_eq!(permissions(&request), Ok(Vec::new()));
    }

    #[test]
    fn unreadable_requests_are_errors() {
        let error = permissions(&request("no PEM", AGENT, CLIENT_USAGES)).expect_err("no request");
        assert!(error.to_string().starts_with("unable to parse csr \"csr-1\": "), "{error}");
    }

    #[rstest]
    #[case::new(json!({}), true)]
    #[case::approved(json!({"status": {"conditions": [{"type": "Approved"}]}}), false)]
    #[case::denied(json!({"status": {"conditions": [{"type": "Denied"}]}}), false)]
    #[case::failed(json!({"status": {"conditions": [{"type": "Failed"}]}}), true)]
    #[case::signed(json!({"status": {"certificate": "LS0t"}}), false)]
    #[case::kubelet_serving(json!({"spec": {"signerName": "kubernetes.io/kubelet-serving"}}), false)]
    fn pending_requests_are_undecided_and_for_the_client_signer(#[case] change: Value, #[case] expected: bool) {
        let mut request = request("", AGENT, CLIENT_USAGES);
        json_patch::merge(&mut request, &change);
        assert_eq!(is_pending(&request), expected);
    }

    #[test]
    fn approval_names_the_subject_access_review() {
        let request = request("", AGENT, CLIENT_USAGES);
        let spec = &access_review(&request, RENEW_CERTIFICATE)["spec"];
        assert_eq!((&spec["user"], &spec["groups"]), (&json!(AGENT), &json!(["system:authenticated"])));
        assert_eq!(spec["resourceAttributes"]["subresource"], "selfclusteragent");
        let condition = &approve(&request, RENEW_CERTIFICATE, "2026-01-01T00:00:00Z")["status"]["conditions"][0];
        assert_eq!((&condition["type"], &condition["reason"]), (&json!("Approved"), &json!("AutoApproved")));
        assert_eq!(condition["message"], RENEW_CERTIFICATE.message);
    }
}
