//! Impersonation by the modes of a request: they are tried in order, and the first one that the caller is authorized for
//! is used.

use std::num::NonZeroUsize;

use crowsnest_apimachinery::rbac::{Action, Decision};
use crowsnest_apimachinery::status::{ApiError, ApiResult};
use crowsnest_apimachinery::user::UserInfo;
use lru::LruCache;
use parking_lot::Mutex;

use super::modes::{Mode, Step, plan_attempts};
use crate::authz::{self, AccessReviewer};

/// Maximum number of callers whose last mode is cached.
const MAX_CALLERS: NonZeroUsize = NonZeroUsize::new(10_000).expect("a constant above zero");
/// Maximum length in bytes of the user names whose last mode is cached.
const MAX_CACHED_NAME_BYTES: usize = 1024;

/// Impersonates users, and caches the mode that each caller used last. That mode is tried first, and its error is
/// returned if all modes are refused.
pub struct Impersonator {
    last_modes: Mutex<LruCache<String, Mode>>,
}

impl Default for Impersonator {
    fn default() -> Self {
        Self { last_modes: Mutex::new(LruCache::new(MAX_CALLERS)) }
    }
}

impl Impersonator {
    /// Returns the identity and mode with which `caller` sends `request` as the user `requested`.
    ///
    /// # Errors
    /// If no mode is allowed, returns the error of the first review that failed, since the mode that it checked may be
    /// allowed. If no review failed, returns the error of the first mode, as kube-apiserver does in both cases.
    pub async fn impersonate<R: AccessReviewer>(
        &self,
        reviewer: &R,
        caller: &UserInfo,
        requested: &UserInfo,
        request: &Action,
    ) -> ApiResult<(UserInfo, Mode)> {
        let last = self.last_modes.lock().get(&caller.name).copied();
        let (mut first_refusal, mut first_failure) = (None, None);
        for attempt in plan_attempts(caller, requested, request, last) {
            match find_refusal(reviewer, caller, &attempt.steps).await {
                Ok(None) => {
                    if caller.name.len() <= MAX_CACHED_NAME_BYTES {
                        self.last_modes.lock().put(caller.name.clone(), attempt.mode);
                    }
                    return Ok((attempt.user, attempt.mode));
                }
                Ok(Some(refusal)) => {
                    first_refusal.get_or_insert(refusal);
                }
                Err(failure) => {
                    first_failure.get_or_insert(failure);
                }
            }
        }
        let error = first_failure.or(first_refusal);
        Err(error.unwrap_or_else(|| ApiError::internal("all impersonation modes failed")))
    }
}

/// Performs the steps of an attempt and returns the error of the first step that is refused. Fails if a review fails,
/// except that of a step for all values at once if each value is then allowed by its own review.
async fn find_refusal<R: AccessReviewer>(
    reviewer: &R,
    caller: &UserInfo,
    steps: &[Step],
) -> ApiResult<Option<ApiError>> {
    for step in steps {
        let (actions, failure) = match step {
            Step::Check(action) => (std::slice::from_ref(action), None),
            Step::CheckMany { all, each } => match reviewer.review_action(caller, all).await {
                Ok(Decision::Allowed { .. }) => continue,
                Ok(Decision::NoOpinion { .. }) => (each.as_slice(), None),
                Err(failure) => (each.as_slice(), Some(failure)),
            },
            Step::Refuse { action, reason } => return Ok(Some(authz::forbidden(&caller.name, action, reason))),
        };
        for action in actions {
            if let Decision::NoOpinion { reason } = reviewer.review_action(caller, action).await? {
                let refusal = authz::forbidden(&caller.name, action, &reason);
                return failure.map_or(Ok(Some(refusal)), Err);
            }
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crowsnest_apimachinery::user::MASTERS;
    use rstest::rstest;

    /// Allows the listed checks, fails for the check `unavailable`, and records all of them, as `verb resource/name`.
    struct Reviewer<'a> {
        allowed: &'a [&'a str],
        unavailable: &'a str,
        reviewed: Mutex<Vec<String>>,
    }

    impl<'a> Reviewer<'a> {
        fn new(allowed: &'a [&'a str], unavailable: &'a str) -> Self {
            Self { allowed, unavailable, reviewed: Mutex::default() }
        }
    }

    impl AccessReviewer for Reviewer<'_> {
        async fn review_action(&self, _: &UserInfo, action: &Action) -> ApiResult<Decision> {
            let check = match action {
                Action::Resource { verb, resource, name, .. } => format!("{verb} {resource}/{name}"),
                Action::Path { verb, path } => format!("{verb} {path}"),
            };
            self.reviewed.lock().push(check.clone());
            if check == self.unavailable {
                return Err(ApiError::unavailable("no answer"));
            }
            let reason = String::new();
            Ok(match self.allowed.contains(&check.as_str()) {
                true => Decision::Allowed { reason },
                false => Decision::NoOpinion { reason },
            })
        }
    }

    fn user(name: &str, groups: &[&str]) -> UserInfo {
        UserInfo::new(name, groups.iter().copied())
    }

    fn get_path() -> Action {
        Action::Path { verb: "get".to_owned(), path: "/x".to_owned() }
    }

    const ON_REQUEST: &str = "impersonate-on:user-info:get /x";
    const JANE: &str = "impersonate:user-info users/jane";
    const LEGACY: &str = "impersonate users/jane";

    #[rstest]
    #[case::constrained(&[], &[ON_REQUEST, JANE], "", Ok(Mode::UserInfo), &[ON_REQUEST, JANE])]
    #[case::legacy(&[], &[LEGACY], "", Ok(Mode::Legacy), &[ON_REQUEST, LEGACY])]
    #[case::refused(&[], &[], "", Err((403, "cannot impersonate-on:user-info:get path \"/x\"")), &[ON_REQUEST, LEGACY])]
    #[case::refused_value(&[MASTERS], &[ON_REQUEST, JANE], "",
        Err((403, "impersonating the system:masters group is not allowed")), &[ON_REQUEST, JANE, LEGACY])]
    #[case::all_groups(&["a", "b", "c", "d"], &[ON_REQUEST, JANE, "impersonate:user-info groups/*"], "", Ok(Mode::UserInfo),
        &[ON_REQUEST, JANE, "impersonate:user-info groups/*"])]
    #[case::each_group(&["a", "b", "c", "d"], &[ON_REQUEST, JANE, "impersonate:user-info groups/a"], "",
        Err((403, "groups.authentication.k8s.io \"b\" is forbidden")),
        &[ON_REQUEST, JANE, "impersonate:user-info groups/*", "impersonate:user-info groups/a",
          "impersonate:user-info groups/b", LEGACY])]
    #[case::undecided_then_legacy(&[], &[LEGACY], ON_REQUEST, Ok(Mode::Legacy), &[ON_REQUEST, LEGACY])]
    #[case::undecided(&[], &[], ON_REQUEST, Err((503, "no answer")), &[ON_REQUEST, LEGACY])]
    #[case::undecided_after_refusal(&[], &[ON_REQUEST], LEGACY, Err((503, "no answer")), &[ON_REQUEST, JANE, LEGACY])]
    #[case::undecided_for_all_groups(&["a", "b", "c", "d"], &[ON_REQUEST, JANE, "impersonate:user-info groups/a",
        "impersonate:user-info groups/b", "impersonate:user-info groups/c", "impersonate:user-info groups/d"],
        "impersonate:user-info groups/*", Ok(Mode::UserInfo), &[ON_REQUEST, JANE, "impersonate:user-info groups/*",
        "impersonate:user-info groups/a", "impersonate:user-info groups/b", "impersonate:user-info groups/c",
        "impersonate:user-info groups/d"])]
    #[case::refused_and_undecided_for_all_groups(&["a", "b", "c", "d"], &[ON_REQUEST, JANE],
        "impersonate:user-info groups/*", Err((503, "no answer")),
        &[ON_REQUEST, JANE, "impersonate:user-info groups/*", "impersonate:user-info groups/a", LEGACY])]
    #[tokio::test]
    async fn modes_are_tried_until_one_is_allowed(
        #[case] groups: &[&str],
        #[case] allowed: &[&str],
        #[case] unavailable: &str,
        #[case] expected: Result<Mode, (u16, &str)>,
        #[case] reviewed: &[&str],
    ) {
        let reviewer = Reviewer::new(allowed, unavailable);
        let (caller, requested) = (user("ops", &[]), user("jane", groups));
        let result = Impersonator::default().impersonate(&reviewer, &caller, &requested, &get_path()).await;
        match (result, expected) {
            (Ok((user, mode)), Ok(expected)) => assert_eq!((user.name.as_str(), mode), ("jane", expected)),
            (Err(error), Err((code, message))) => {
                assert!(error.code == code && error.message.contains(message), "{error}");
            }
            (result, expected) => panic!("{result:?} instead of {expected:?}"),
        }
        assert_eq!(*reviewer.reviewed.lock(), reviewed);
    }

    #[rstest]
    #[case::cached(2, &[LEGACY])]
    #[case::too_long(MAX_CACHED_NAME_BYTES + 1, &[ON_REQUEST, LEGACY])]
    #[tokio::test]
    async fn the_last_mode_of_a_caller_is_tried_first(#[case] name_bytes: usize, #[case] reviewed: &[&str]) {
        let (caller, requested) = (user(&"o".repeat(name_bytes), &[]), user("jane", &[]));
        let (impersonator, reviewer) = (Impersonator::default(), Reviewer::new(&[LEGACY], ""));
        let first = impersonator.impersonate(&reviewer, &caller, &requested, &get_path()).await;
        reviewer.reviewed.lock().clear();
        let second = impersonator.impersonate(&reviewer, &caller, &requested, &get_path()).await;
        assert!(first.is_ok() && first == second);
        assert_eq!(*reviewer.reviewed.lock(), reviewed);
    }
}
