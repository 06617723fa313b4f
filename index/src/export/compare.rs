//! Decides what to do with a document found in a backend; pure functions.

use super::selection::Membership;
use super::version::{DocumentVersion, Epochs};

/// Decision about a document.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The document equals the stored object.
    Current,
    /// The document differs from the stored object, which is written again.
    Outdated,
    /// The document has no selected object and is deleted.
    Unselected,
    /// The document is not changed, because it may belong to another writer or to an object that is not stored yet.
    Kept,
    /// The document has this epoch, which is at least that of the comparison, so the backend would reject writes as
    /// outdated. The comparison is repeated with a higher epoch.
    Ahead { epoch: u64 },
}

/// Decides what to do with the document of the external version `number`. `selected`: sequence number of the object with this
/// uid, if one is selected for the index. `membership`: relation of the document's cluster to the index.
///
/// A document of a selected cluster that the store does not have is deleted, even if another writer created it:
/// Karmada leaves such documents behind when objects are deleted while it is down. A document of another cluster is
/// deleted only if Crowsnest wrote it.
pub(super) fn decide(number: u64, selected: Option<u64>, membership: Membership, epochs: Epochs) -> Verdict {
    let version = DocumentVersion::parse(number);
    if let Some(DocumentVersion { epoch, .. }) = version
        && epoch >= epochs.last
    {
        return Verdict::Ahead { epoch };
    }
    match (selected, membership, version) {
        (Some(seq), _, Some(version)) if version.seq == seq && version.epoch >= epochs.first => Verdict::Current,
        (Some(_), _, _) => Verdict::Outdated,
        (None, Membership::Incomplete, _) | (None, Membership::NotSelected, None) => Verdict::Kept,
        (None, Membership::Selected, _) | (None, Membership::NotSelected, Some(_)) => Verdict::Unselected,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    const EPOCHS: Epochs = Epochs { first: 5, last: 9 };

    fn version_number(epoch: u64, seq: u64) -> u64 {
        DocumentVersion::new(epoch, seq).number()
    }

    #[rstest]
    #[case::written_before(version_number(6, 7), Some(7), Membership::Selected, Verdict::Current)]
    #[case::changed_since(version_number(6, 7), Some(8), Membership::Selected, Verdict::Outdated)]
    #[case::of_another_store(version_number(4, 7), Some(7), Membership::Selected, Verdict::Outdated)]
    #[case::of_karmada(7, Some(7), Membership::Selected, Verdict::Outdated)]
    #[case::selected_in_an_incomplete_collection(
        version_number(6, 7),
        Some(7),
        Membership::Incomplete,
        Verdict::Current
    )]
    #[case::deleted(version_number(6, 7), None, Membership::Selected, Verdict::Unselected)]
    #[case::left_behind_by_karmada(3, None, Membership::Selected, Verdict::Unselected)]
    #[case::not_read_yet(version_number(6, 7), None, Membership::Incomplete, Verdict::Kept)]
    #[case::no_longer_selected(version_number(6, 7), None, Membership::NotSelected, Verdict::Unselected)]
    #[case::of_another_store_not_selected(version_number(1, 7), None, Membership::NotSelected, Verdict::Unselected)]
    #[case::of_another_writer(3, None, Membership::NotSelected, Verdict::Kept)]
    #[case::ahead(version_number(9, 7), Some(7), Membership::Selected, Verdict::Ahead { epoch: 9 })]
    #[case::far_ahead(version_number(99, 7), None, Membership::NotSelected, Verdict::Ahead { epoch: 99 })]
    fn verdicts_depend_on_version_and_selection(
        #[case] number: u64,
        #[case] selected: Option<u64>,
        #[case] membership: Membership,
        #[case] expected: Verdict,
    ) {
        assert_eq!(decide(number, selected, membership, EPOCHS), expected);
    }
}
