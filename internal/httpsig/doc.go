// Package httpsig makes and checks HTTP message signatures (RFC 9421, ed25519)
// and content digests (RFC 9530).
//
// Three layers, each usable alone:
//
//   - [Input.AppendBase] builds the signature base for every component kind of
//     RFC 9421 section 2; [Input.Sign] and [Verify] put ed25519 on top of it.
//   - [ContentDigest] and [VerifyDigest] bind a body's exact bytes.
//   - [Signer] and [Policy] are the two ends of one fixed agreement ([Profile]):
//     this label, these components in this order, these parameters, nothing else.
//
// A [Message] holds the request target exactly as it was received. Nothing here
// ever reads a decoded path: decoding is where a signer and a verifier come to
// disagree about what was signed.
//
// # Order of the refusals
//
// [Policy.Verify] answers [ErrRequired] when neither signature header is there,
// then [ErrInvalid] for anything that does not verify, then [ErrStale] when a
// signature that did verify is too old or from the future. A replay is the
// caller's to find, last of all, because it takes a store: only when Verify
// returned no error, insert (KeyID, Nonce) and refuse the request when the pair
// is already there. A request that is refused on any ground must leave no nonce
// behind, so insert in the same transaction as the work or after every other
// refusal. Forget the pair no earlier than [Result.KeepUntil].
package httpsig
