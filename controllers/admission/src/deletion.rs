//! Deletion protection of objects of any kind.

use crowsnest_api::constants::label;

use super::{Operation, Outcome, Refusal, Request};

pub(super) fn validate(request: &Request) -> Result<Outcome, Refusal> {
    let protection = &request.old_object["metadata"]["labels"][label::DELETION_PROTECTED];
    if request.operation == Operation::Delete && protection == label::DELETION_PROTECTED_ALWAYS {
        let message =
            format!("This resource is protected, please make sure to remove the label: {}", label::DELETION_PROTECTED);
        return Err(Refusal::denied(message));
    }
    Ok(Outcome::Unchanged)
}
