//! `authorizer` of expressions: the decisions of the control plane.

use crowsnest_apimachinery::rbac::{Action, Decision};
use crowsnest_apimachinery::user::UserInfo;
use crowsnest_apiserver::audit::Attributes;
use crowsnest_cel::authorizer::AccessChecker;
use tokio::runtime::{Handle, RuntimeFlavor};

use crate::request::authentication::{AccessDecision, DelegatedAuth};

/// Decides by SubjectAccessReviews.
pub(super) struct Reviews(pub(super) DelegatedAuth);

impl AccessChecker for Reviews {
    fn decide(&self, user: &UserInfo, action: &Action) -> Decision {
        match wait_for(self.0.review(user, &Attributes::from(action.clone()))) {
            Some(Ok(AccessDecision { allowed: true, reason })) => Decision::Allowed { reason },
            Some(Ok(AccessDecision { reason, .. })) => Decision::NoOpinion { reason },
            Some(Err(error)) => undecided(user, error.message),
            None => undecided(user, "the control plane cannot be queried in this thread".to_owned()),
        }
    }
}

/// The decision of an expression whose access review failed.
fn undecided(user: &UserInfo, reason: String) -> Decision {
    tracing::warn!(user = user.name, reason, "an access review for an admission expression failed");
    Decision::NoOpinion { reason }
}

/// Waits for a future within an expression, whose evaluation is synchronous: other tasks of this thread continue on
/// another one. `None` outside of a runtime that has other threads.
fn wait_for<F: Future>(future: F) -> Option<F::Output> {
    let runtime = Handle::try_current().ok()?;
    let has_threads = runtime.runtime_flavor() == RuntimeFlavor::MultiThread;
    has_threads.then(|| tokio::task::block_in_place(|| runtime.block_on(future)))
}
