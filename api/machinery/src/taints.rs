//! Kubernetes' rules for taints and tolerations, applied to clusters as to nodes.

use k8s_openapi::api::core::v1::{Taint, Toleration};

pub const NO_SCHEDULE: &str = "NoSchedule";
pub const NO_EXECUTE: &str = "NoExecute";

/// True if a toleration covers a taint. An empty key with `Exists` covers every key, an empty effect every effect;
/// an empty operator means `Equal`.
pub fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
    let non_empty = |text: &Option<String>| text.as_deref().filter(|text| !text.is_empty()).map(str::to_owned);
    if non_empty(&toleration.effect).is_some_and(|effect| effect != taint.effect) {
        return false;
    }
    if non_empty(&toleration.key).is_some_and(|key| key != taint.key) {
        return false;
    }
    match toleration.operator.as_deref() {
        None | Some("" | "Equal") => {
            toleration.value.as_deref().unwrap_or_default() == taint.value.as_deref().unwrap_or_default()
        }
        Some("Exists") => true,
        Some(_) => false,
    }
}

/// The first relevant taint that no toleration covers.
pub fn first_untolerated_taint<'t>(
    taints: &'t [Taint],
    tolerations: &[Toleration],
    is_relevant: impl Fn(&Taint) -> bool,
) -> Option<&'t Taint> {
    taints
        .iter()
        .filter(|taint| is_relevant(taint))
        .find(|taint| !tolerations.iter().any(|toleration| tolerates(toleration, taint)))
}

/// True if a taint prevents scheduling.
pub fn prevents_scheduling(taint: &Taint) -> bool {
    taint.effect == NO_SCHEDULE || taint.effect == NO_EXECUTE
}

/// Time in seconds for which objects with these tolerations may stay under `NoExecute` taints. `None` if a taint
/// is not tolerated; `Some(None)` for an unlimited time. If several tolerations cover a taint, the first one counts.
pub fn toleration_seconds(taints: &[Taint], tolerations: &[Toleration]) -> Option<Option<i64>> {
    let mut shortest: Option<i64> = None;
    for taint in taints.iter().filter(|taint| taint.effect == NO_EXECUTE) {
        let covering = tolerations.iter().find(|toleration| tolerates(toleration, taint))?;
        if let Some(seconds) = covering.toleration_seconds {
            let seconds = seconds.max(0);
            shortest = Some(shortest.map_or(seconds, |shortest| shortest.min(seconds)));
        }
    }
    Some(shortest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    fn toleration(text: &str) -> Toleration {
        serde_saphyr::from_str(text).unwrap()
    }

    #[rstest]
    #[case("{operator: Exists}", true)]
    #[case("{key: a, operator: Exists}", true)]
    #[case("{key: b, operator: Exists}", false)]
    #[case("{key: a, value: x}", true)]
    #[case("{key: a, value: y}", false)]
    #[case("{key: a, operator: Equal, value: x, effect: NoExecute}", false)]
    #[case("{key: a, operator: Gt, value: x}", false)]
    fn toleration_covers_taint(#[case] text: &str, #[case] covers: bool) {
        let taint = Taint { key: "a".into(), value: Some("x".into()), effect: NO_SCHEDULE.into(), time_added: None };
        assert_eq!(tolerates(&toleration(text), &taint), covers, "{text}");
    }

    #[test]
    fn the_shortest_toleration_counts() {
        let taint = |key: &str| Taint { key: key.into(), effect: NO_EXECUTE.into(), ..Taint::default() };
        let tolerations = [
            toleration("{key: a, operator: Exists, tolerationSeconds: 300}"),
            toleration("{key: b, operator: Exists, tolerationSeconds: 20}"),
            toleration("{key: c, operator: Exists}"),
        ];
        assert_eq!(toleration_seconds(&[taint("a"), taint("b")], &tolerations), Some(Some(20)));
        assert_eq!(toleration_seconds(&[taint("c")], &tolerations), Some(None));
        assert_eq!(toleration_seconds(&[taint("d")], &tolerations), None);
    }
}
