//! The variable `authorizer` of CEL expressions: decisions by access reviews in the control plane.

use crowsnest_apimachinery::rbac::{Action, Decision};
use crowsnest_apimachinery::user::UserInfo;
use crowsnest_apiserver::audit::Attributes;
use crowsnest_cel::authorizer::AccessChecker;
use tokio::runtime::{Handle, RuntimeFlavor};

use crate::request::authentication::DelegatedAuth;

/// Decides by SubjectAccessReviews in the control plane.
pub(super) struct AccessReviewChecker(pub(super) DelegatedAuth);

impl AccessChecker for AccessReviewChecker {
    fn decide(&self, user: &UserInfo, action: &Action) -> Decision {
        match block_on(self.0.review(user, &Attributes::from(action.clone()))) {
            Some(Ok(decision)) => decision.into(),
            Some(Err(error)) => no_opinion(user, error.message),
            None => no_opinion(user, "the control plane cannot be queried in this thread".to_owned()),
        }
    }
}

/// The decision of an expression whose access review failed.
fn no_opinion(user: &UserInfo, reason: String) -> Decision {
    tracing::warn!(user = user.name, reason, "an access review for an admission expression failed");
    Decision::NoOpinion { reason }
}

/// Waits for a future from the synchronous evaluation of an expression. Other tasks of this thread continue on another
/// thread. `None` outside of a multi-threaded runtime.
fn block_on<F: Future>(future: F) -> Option<F::Output> {
    let runtime = Handle::try_current().ok()?;
    let has_threads = runtime.runtime_flavor() == RuntimeFlavor::MultiThread;
    has_threads.then(|| tokio::task::block_in_place(|| runtime.block_on(future)))
}
