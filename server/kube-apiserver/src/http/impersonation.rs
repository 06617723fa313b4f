//! Impersonation, including the constrained modes of KEP-5284: the modes are tried in order, and the first one that the
//! caller is authorized for is used.

use std::num::NonZeroUsize;

use crowsnest_apimachinery::rbac::{Action, Decision};
use crowsnest_apimachinery::status::{ApiError, ApiResult};
use crowsnest_apimachinery::user::UserInfo;
use crowsnest_apiserver::authn::impersonation::{Attempt, Mode, Step, plan_attempts};
use crowsnest_registry::authz::{self, Authorizer};
use lru::LruCache;
use parking_lot::Mutex;

/// Maximum number of callers whose last mode is cached.
const MAX_CALLERS: NonZeroUsize = NonZeroUsize::new(10_000).expect("a constant above zero");

/// Cache of the mode that each caller used last. That mode is tried first, and its error is returned if all modes are
/// refused.
pub(super) struct Impersonation(Mutex<LruCache<String, Mode>>);

impl Default for Impersonation {
    fn default() -> Self {
        Self(Mutex::new(LruCache::new(MAX_CALLERS)))
    }
}

impl Impersonation {
    /// Returns the identity and mode with which `caller` impersonates `requested_user`, or the error of the first mode
    /// that was refused.
    pub(super) fn resolve(
        &self,
        authorizer: &Authorizer,
        caller: &UserInfo,
        requested_user: &UserInfo,
        request: &Action,
    ) -> ApiResult<(UserInfo, Mode)> {
        let last = self.0.lock().get(&caller.name).copied();
        let mut first_error = None;
        for attempt in plan_attempts(caller, requested_user, request, last) {
            match check(authorizer, caller, &attempt) {
                Ok(()) => {
                    self.0.lock().put(caller.name.clone(), attempt.mode);
                    return Ok((attempt.user, attempt.mode));
                }
                Err(error) => {
                    first_error.get_or_insert(error);
                }
            }
        }
        Err(first_error.unwrap_or_else(|| ApiError::internal("all impersonation modes failed")))
    }
}

/// Checks all rights that an attempt requires.
fn check(authorizer: &Authorizer, caller: &UserInfo, attempt: &Attempt) -> ApiResult<()> {
    for step in &attempt.steps {
        match step {
            Step::Check(action) => authorizer.check(caller, action)?,
            Step::CheckMany { all, .. } if authorizer.allows(caller, all) => {}
            Step::CheckMany { each, .. } => each.iter().try_for_each(|action| authorizer.check(caller, action))?,
            Step::Refuse { action, reason } => {
                return authz::require_allowed(caller, action, Decision::NoOpinion { reason: reason.clone() });
            }
        }
    }
    Ok(())
}
