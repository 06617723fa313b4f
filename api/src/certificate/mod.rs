//! Certificates as proof of identity: the subject, the signing request, and the identities that are reserved.
//!
//! [`CertificateSubject::from_der`] is the only reader of subjects in the workspace. Approver, signer, admission and every
//! authenticator use it, so a certificate cannot mean one thing to one of them and another thing to the next.

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
