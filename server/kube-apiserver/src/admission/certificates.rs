//! `CertificateApproval`, `CertificateSigning` and `CertificateSubjectRestriction` admission: the permissions to approve
//! and sign requests of a signer, and subjects that are never allowed.

use std::sync::Arc;

use async_trait::async_trait;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use crowsnest_apimachinery::rbac::Action;
use crowsnest_apimachinery::status::{ApiError, ApiResult};
use crowsnest_apiserver::authn::{FRONT_PROXY, SigningRequest};
use crowsnest_registry::admission::{Admission, Attributes, Operation, Validation};
use crowsnest_registry::authz::Authorizer;
use serde_json::Value;

const GROUP: &str = "certificates.k8s.io";
const PLURAL: &str = "certificatesigningrequests";
const CLIENT_SIGNER: &str = "kubernetes.io/kube-apiserver-client";
const MASTERS: &str = crowsnest_apimachinery::user::MASTERS;

/// Requires the verb `approve` on the signer for approvals.
pub struct CertificateApproval(pub Arc<Authorizer>);

/// Requires the verb `sign` on the signer for certificates and for conditions other than approval.
pub struct CertificateSigning(pub Arc<Authorizer>);

/// Rejects client certificates with the group `system:masters` or the name of a front proxy.
pub struct CertificateSubjectRestriction;

/// True if the request is this operation on this subresource of CertificateSigningRequests.
fn is_signing_request(a: &Attributes<'_>, operation: Operation, subresource: &str) -> bool {
    let gvr = &a.resource.gvr;
    let is_request = &*gvr.group == GROUP && &*gvr.resource == PLURAL;
    is_request && a.operation == operation && a.ctx.subresource == subresource
}

fn forbidden_error(a: &Attributes<'_>, reason: String) -> ApiError {
    ApiError::forbidden(GROUP, PLURAL, a.name, reason)
}

/// Checks that the user has a permission on the signer of the stored object, because `signerName` is immutable.
fn check_signer_permission(authorizer: &Authorizer, a: &Attributes<'_>, verb: &str) -> ApiResult<()> {
    let signer = a.old.and_then(|old| old["spec"]["signerName"].as_str()).unwrap_or_default();
    let is_allowed_on = |name: &str| {
        let action = Action::Resource {
            verb: verb.to_owned(),
            group: GROUP.to_owned(),
            resource: "signers".to_owned(),
            subresource: String::new(),
            namespace: String::new(),
            name: name.to_owned(),
        };
        authorizer.allows(&a.ctx.user, &action)
    };
    let domain = signer.split('/').next().unwrap_or_default();
    if is_allowed_on(signer) || is_allowed_on(&format!("{domain}/*")) {
        return Ok(());
    }
    Err(forbidden_error(a, format!("user not permitted to {verb} requests with signerName {signer:?}")))
}

#[async_trait]
impl Admission for CertificateApproval {
    async fn validate(&self, Validation { attributes: a, .. }: Validation<'_>) -> ApiResult<()> {
        if is_signing_request(a, Operation::Update, "approval") {
            return check_signer_permission(&self.0, a, "approve");
        }
        Ok(())
    }
}

#[async_trait]
impl Admission for CertificateSigning {
    async fn validate(&self, Validation { attributes: a, object, .. }: Validation<'_>) -> ApiResult<()> {
        let (Some(old), Some(new), true) = (a.old, object, is_signing_request(a, Operation::Update, "status")) else {
            return Ok(());
        };
        let certificate = |object: &Value| object["status"]["certificate"].as_str().unwrap_or_default().to_owned();
        let conditions = |object: &Value| object["status"]["conditions"].as_array().cloned().unwrap_or_default();
        if certificate(old) == certificate(new) && conditions(old) == conditions(new) {
            return Ok(());
        }
        check_signer_permission(&self.0, a, "sign")
    }
}

#[async_trait]
impl Admission for CertificateSubjectRestriction {
    async fn validate(&self, Validation { attributes: a, object, .. }: Validation<'_>) -> ApiResult<()> {
        let spec = match object {
            Some(object) if is_signing_request(a, Operation::Create, "") => &object["spec"],
            _ => return Ok(()),
        };
        if spec["signerName"] != CLIENT_SIGNER {
            return Ok(());
        }
        let pem = STANDARD.decode(spec["request"].as_str().unwrap_or_default()).unwrap_or_default();
        let signing_request = SigningRequest::parse(&pem)
            .map_err(|reason| forbidden_error(a, format!("failed to parse CSR: {reason}")))?;
        if signing_request.subject.organizations().contains(&MASTERS) {
            return Err(forbidden_error(
                a,
                format!("use of {CLIENT_SIGNER} signer with {MASTERS} group is not allowed"),
            ));
        }
        if signing_request.subject.common_name() == Some(FRONT_PROXY) {
            return Err(forbidden_error(
                a,
                format!("use of {CLIENT_SIGNER} signer with common name {FRONT_PROXY} is not allowed"),
            ));
        }
        Ok(())
    }
}
