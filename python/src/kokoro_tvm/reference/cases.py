"""Phoneme strings that the validators speak.

What it is: utterances of 1 to 510 phonemes, each within the published vocabulary, chosen to differ in length, alphabet,
stress, punctuation and repetition. What it is not: text; no grapheme-to-phoneme conversion is involved.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Case:
    """One utterance: a name for reports and its phonemes."""

    name: str
    phonemes: str


_FOX = "ðə kwˈɪk bɹˈWn fˈɑks ʤˈʌmps ˈOvəɹ ðə lˈAzi dˈɔɡ."
_RAIN = "ðə ɹˈAn ɪn spˈAn stˈAz mˈAnli ɪn ðə plˈAn, ænd ðə wˈɪnd blˈOz θɹu ðə ˈOpən wˈɪndO ˈɔl nˈIt lˈɔŋ."
_HARBOR = (
    "ˈɜɹli ɪn ðə mˈɔɹnɪŋ ðə fˈɪʃɪŋ bˈOts lˈɛft ðə hˈɑɹbəɹ, wˈʌn ˈæftəɹ ənˈʌðəɹ, ənd ðə ɡˈʌlz fˈɑlOd ðɛm ˈWt. "
    "nˈObˌɑdi spˈOk; ðə wˈɔTəɹ wʌz flˈæt ənd ɡɹˈA, ənd ðə sˈʌn kˈAm ˈʌp bəhˈInd ðə hˈɪlz."
)

CASES: tuple[Case, ...] = (
    Case("one vowel", "a"),
    Case("one stop", "."),
    Case("two phonemes", "ˈI"),
    Case("short word", "jˈɛs."),
    Case("hello", "həlˈO wˈɜɹld"),
    Case("hello with stop", "həlˈO wˈɜɹld!"),
    Case("question", "ˌɑɹ ju kˈʌmɪŋ tənˈIt?"),
    Case("fricatives", "ʃi sˈɛlz sˈiʃˌɛlz, ʒə ʃʒθðsz."),
    Case("plosives", "pˈitəɹ pˈIpəɹ pˈɪkt ə pˈɛk ʌv pˈɪkᵊld pˈɛpəɹz."),
    Case("vowels only", "ɑ ɐ ɒ æ ə ɚ ɛ ɜ ɨ ɪ i o ɔ ø œ u ʊ ʌ ᵻ"),
    Case("four seconds", _FOX),
    Case("digits", "wˈʌn tˈu θɹˈi fˈɔɹ fˈIv sˈɪks sˈɛvən ˈAt nˈIn tˈɛn"),
    Case("quotes and brackets", '“nˈO,” hi sˈɛd (kwˈIətli) — "nˌɑt tədˈA…"'),
    Case("british", "ðə kˈɑː pˈɑːk ɪz bɪhˈInd ðə θˈɪətə, nˈɪə ðə ɹˈɪvə."),
    Case("french", "bɔ̃ʒˈuʁ, kɔmɑ̃ tal e vˈu oʒuʁdɥˈi?"),
    Case("spanish", "bwˈenos ðˈias, ˈesta mˈaɲana ˈaj mˈuʧa lˈuβja."),
    Case("japanese", "koɲɲiʨiβa, kʲoː βa iː teŋki desɨ ne."),
    Case("mandarin", "ni↓xˈɑʊ↓, ʈʂɤ↘ ʂɻ↘ i→ kɤ↘ ʦʰɤ↘ʂɻ↘↗."),
    Case("hindi", "nˌʌmʌstˈeː, ˈaːp kˈɛːseː hɛ̃ː? ʈʰˈiːk ɖʰˈʌŋ."),
    Case("rare symbols", "ɕyɽᵝ χɟr ʣʋSq: ꭧçʔɴQ ɣɰYʥ ɳɸɾɯ cʝʎ"),
    Case("repetition", "la la la la la la la la la la la la la la la la"),
    Case("silence", ". . . , , , — — — … … …"),
    Case("seven seconds", _RAIN),
    Case("twelve seconds", _HARBOR),
    Case("twenty seconds", f"{_HARBOR} {_RAIN}"),
    Case("thirty seconds", f"{_HARBOR} {_RAIN} {_HARBOR}"),
    Case("longest", f"{_HARBOR} {_RAIN} {_FOX} {_HARBOR} {_RAIN}"[:510]),
)
"""In order of length, roughly; names say durations at a real voice's pace, synthetic weights have their own."""
