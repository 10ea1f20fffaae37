"""What is said about scores: which was taken, what training added, and what each kind of decoy tells."""

from crcl.auditing.scores.interval import Interval
from crcl.auditing.scores.rating import Rating
from crcl.auditing.scores.telling import about_kinds, about_score, about_training


def test_the_taken_score_is_named_with_what_it_is_and_the_others_follow() -> None:
    ratings = {
        "belief": Rating(0.81, 0.004),
        "consistency": Rating(0.805, 0.004),
        "linear": Rating(0.80, 0.004, -0.01, 0.001),
    }
    (sentence,) = about_score("belief", ratings)
    assert sentence.startswith(
        "Judged by belief, the belief of the trained run: AUROC of decoys against pairs 0.810 ± "
    )
    assert sentence.endswith("0.004; other scores: linear 0.800.")
    assert "consistency" not in sentence  # it is not among those that are compared


def test_a_doubtful_estimate_is_said_to_be_an_upper_bound() -> None:
    ratings = {"linear": Rating(0.62, 0.02), "cosine": Rating(0.6, 0.02, -0.02, 0.01)}
    assert "upper bound" in about_score("linear", ratings, doubtful=True)[1]
    assert len(about_score("linear", ratings)) == 1


def test_where_nothing_is_estimated_no_score_is_said_to_judge() -> None:
    ratings = {"linear": Rating(0.512, 0.02), "cosine": Rating(0.5, 0.02), "similarity": Rating(0.9, 0.01)}
    (sentence,) = about_score("linear", ratings, blind=True)
    assert sentence == "No score tells decoys from pairs: the best AUROC is 0.51 ± 0.02, where chance is 0.50."


def test_nothing_is_said_of_a_single_score() -> None:
    assert about_score("belief", {"belief": Rating(0.8, 0.01)}) == []
    assert about_training({"belief": Rating(0.8, 0.01)}) == []
    assert about_kinds({"random": Interval(0.9, 0.8, 0.95)}) == []


def test_training_that_adds_nothing_is_said_to_add_nothing() -> None:
    def told(added: float, error: float) -> str:
        (sentence,) = about_training({"belief": Rating(0.8, 0.01), "linear": Rating(0.8, 0.01, -added, error)})
        return sentence

    assert told(0.02, 0.005) == "Training added 0.020 ± 0.005 to the AUROC of the quick audit."
    assert "added nothing" in told(0.001, 0.005)
    assert "added nothing" in told(-0.004, 0.005)
    assert "took from it: -0.020" in told(-0.02, 0.005)


def test_recall_is_told_for_each_kind_with_its_interval() -> None:
    assert about_kinds({"near": Interval(0.6, 0.4, 0.77), "random": Interval(0.95, 0.9, 0.98)}) == [
        "Of decoys are flagged: 95 % (90–98) of captions of other images, and 60 % (40–77) of captions of similar "
        "images."
    ]
