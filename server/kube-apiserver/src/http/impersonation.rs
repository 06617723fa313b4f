//! Impersonation in the first mode whose rights the caller has.

use std::num::NonZeroUsize;

use crowsnest_apimachinery::rbac::{Action, Decision};
use crowsnest_apimachinery::status::{ApiError, ApiResult};
use crowsnest_apimachinery::user::UserInfo;
use crowsnest_apiserver::authn::impersonation::{Attempt, Mode, Step, attempts};
use crowsnest_registry::authz::{self, Authorizer};
use lru::LruCache;
use parking_lot::Mutex;

/// Number of callers whose last mode is kept.
const CALLERS: NonZeroUsize = NonZeroUsize::new(10_000).expect("a constant above zero");

/// The mode by which each caller impersonated last. It is tried first, and its refusal is reported.
pub(super) struct Impersonation(Mutex<LruCache<String, Mode>>);

impl Default for Impersonation {
    fn default() -> Self {
        Self(Mutex::new(LruCache::new(CALLERS)))
    }
}

impl Impersonation {
    /// The user whom `caller` impersonates in a request; the error of the first refused mode if there is none.
    pub(super) fn resolve(
        &self,
        authorizer: &Authorizer,
        caller: &UserInfo,
        wanted: &UserInfo,
        request: &Action,
    ) -> ApiResult<(UserInfo, Mode)> {
        let last = self.0.lock().get(&caller.name).copied();
        let mut refused = None;
        for attempt in attempts(caller, wanted, request, last) {
            match check(authorizer, caller, &attempt) {
                Ok(()) => {
                    self.0.lock().put(caller.name.clone(), attempt.mode);
                    return Ok((attempt.user, attempt.mode));
                }
                Err(error) => {
                    refused.get_or_insert(error);
                }
            }
        }
        Err(refused.unwrap_or_else(|| ApiError::internal("all impersonation modes failed")))
    }
}

fn check(authorizer: &Authorizer, caller: &UserInfo, attempt: &Attempt) -> ApiResult<()> {
    for step in &attempt.steps {
        match step {
            Step::Check(action) => authorizer.check(caller, action)?,
            Step::CheckMany { all, .. } if authorizer.allows(caller, all) => {}
            Step::CheckMany { each, .. } => each.iter().try_for_each(|action| authorizer.check(caller, action))?,
            Step::Refuse { action, reason } => {
                return authz::verdict(caller, action, Decision::NoOpinion { reason: reason.clone() });
            }
        }
    }
    Ok(())
}
