//! Decides about a document found in an engine. Pure.

use super::selection::Belongs;
use super::version::{DocumentVersion, Epochs};

/// Decision about a document.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It equals the stored object.
    Current,
    /// The object is written again.
    Outdated,
    /// It is deleted.
    Unwanted,
    /// It is not changed.
    Kept,
    /// It has this epoch, at or above that of the comparison, so writes would be rejected as older.
    Ahead { epoch: u64 },
}

/// `wanted`: sequence number of the object with this uid, if one is selected for the index. `belongs`: relation of the document's
/// cluster to the index.
///
/// A document of a selected cluster that the store does not have is deleted, even if another writer created it:
/// Karmada leaves such documents behind when objects are deleted while it is down. A document of another cluster is
/// deleted only if Crowsnest wrote it.
pub(super) fn verdict(number: u64, wanted: Option<u64>, belongs: Belongs, epochs: Epochs) -> Verdict {
    let version = DocumentVersion::read(number);
    if let Some(DocumentVersion { epoch, .. }) = version
        && epoch >= epochs.last
    {
        return Verdict::Ahead { epoch };
    }
    match (wanted, belongs, version) {
        (Some(seq), _, Some(version)) if version.seq == seq && version.epoch >= epochs.first => Verdict::Current,
        (Some(_), _, _) => Verdict::Outdated,
        (None, Belongs::Incomplete, _) | (None, Belongs::No, None) => Verdict::Kept,
        (None, Belongs::Selected, _) | (None, Belongs::No, Some(_)) => Verdict::Unwanted,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    const EPOCHS: Epochs = Epochs { first: 5, last: 9 };

    fn ours(epoch: u64, seq: u64) -> u64 {
        DocumentVersion::of(epoch, seq).number()
    }

    #[rstest]
    #[case::written_before(ours(6, 7), Some(7), Belongs::Selected, Verdict::Current)]
    #[case::changed_since(ours(6, 7), Some(8), Belongs::Selected, Verdict::Outdated)]
    #[case::of_another_store(ours(4, 7), Some(7), Belongs::Selected, Verdict::Outdated)]
    #[case::of_karmada(7, Some(7), Belongs::Selected, Verdict::Outdated)]
    #[case::selected_in_an_incomplete_collection(ours(6, 7), Some(7), Belongs::Incomplete, Verdict::Current)]
    #[case::deleted(ours(6, 7), None, Belongs::Selected, Verdict::Unwanted)]
    #[case::left_behind_by_karmada(3, None, Belongs::Selected, Verdict::Unwanted)]
    #[case::not_read_yet(ours(6, 7), None, Belongs::Incomplete, Verdict::Kept)]
    #[case::not_selected_any_more(ours(6, 7), None, Belongs::No, Verdict::Unwanted)]
    #[case::of_another_store_not_selected(ours(1, 7), None, Belongs::No, Verdict::Unwanted)]
    #[case::somebody_elses(3, None, Belongs::No, Verdict::Kept)]
    #[case::ahead(ours(9, 7), Some(7), Belongs::Selected, Verdict::Ahead { epoch: 9 })]
    #[case::far_ahead(ours(99, 7), None, Belongs::No, Verdict::Ahead { epoch: 99 })]
    fn documents(
        #[case] number: u64,
        #[case] wanted: Option<u64>,
        #[case] belongs: Belongs,
        #[case] expected: Verdict,
    ) {
        assert_eq!(verdict(number, wanted, belongs, EPOCHS), expected);
    }
}
