//! What people are shown of explanations.

use super::*;
use crowsnest_apimachinery::names::Gvr;

fn shown(explanation: &str) -> String {
    let told: Value = serde_saphyr::from_str(explanation).unwrap();
    let mut out = Vec::new();
    render(&mut out, &told).unwrap();
    String::from_utf8(out).unwrap()
}

#[rstest::rstest]
#[case::divided(include_str!("divided.yaml"), include_str!("divided.txt"))]
#[case::waiting(include_str!("waiting.yaml"), include_str!("waiting.txt"))]
#[case::needed(include_str!("needed.yaml"), include_str!("needed.txt"))]
fn explanations_are_shown(#[case] explanation: &str, #[case] expected: &str) {
    let shown = shown(explanation);
    assert_eq!(shown, expected, "{shown}");
}

#[rstest::rstest]
#[case("apps", true, "web", "/namespaces/shop/explanations/deployments.apps:web")]
#[case("", true, "web", "/namespaces/shop/explanations/deployments:web")]
#[case("apps", false, "system:a b%", "/clusterexplanations/deployments.apps:system:a%20b%2525")]
fn paths_name_templates(#[case] group: &str, #[case] namespaced: bool, #[case] name: &str, #[case] expected: &str) {
    let kind = Kind { gvr: Gvr::new(group, "v1", "deployments"), kind: "Deployment".to_owned(), namespaced };
    assert_eq!(path(&kind, "shop", name), format!("{ROOT}{expected}"));
}
