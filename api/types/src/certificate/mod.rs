//! Certificates as proof of identity: the subject, the signing request, and the reserved identities.
//!
//! [`CertificateSubject::from_der`] is the only parser of subjects in the workspace. The approver, the signer,
//! admission and all authenticators use it, so a certificate has the same meaning for each of them.

mod agent;
mod attribute;
mod der;
mod request;
mod reserved;
mod subject;

pub use agent::{AGENT_ORGANIZATION, Agent, agent_name};
pub use request::{AlternativeName, RequestSignature, SigningRequest, SigningRequestError};
pub use reserved::{FRONT_PROXY, ReservedIdentity, check_requester};
pub use subject::{CertificateSubject, SubjectError};
