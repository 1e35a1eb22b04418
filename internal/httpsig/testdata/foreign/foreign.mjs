// The other side of foreign_test.go: reads one JSON request from standard input
// and signs it, or verifies it, with the npm package http-message-signatures.
import { createPrivateKey, createPublicKey } from 'node:crypto';
import { text } from 'node:stream/consumers';
import lib from 'http-message-signatures';

const { httpbis, createSigner, createVerifier } = lib;
const job = JSON.parse(await text(process.stdin));

async function sign() {
  const key = createSigner(createPrivateKey(job.privateKey), 'ed25519', job.keyid);
  return httpbis.signMessage({
    key,
    name: job.label,
    fields: job.fields,
    params: job.params,
    paramValues: { created: new Date(job.created * 1000), nonce: job.nonce },
  }, job.request);
}

async function verify() {
  const verifier = createVerifier(createPublicKey(job.publicKey), 'ed25519');
  const verified = await httpbis.verifyMessage({
    keyLookup: async ({ keyid }) => (keyid === job.keyid ? { id: keyid, algs: ['ed25519'], verify: verifier } : null),
    requiredFields: job.fields,
    requiredParams: job.params,
  }, job.request);
  return { verified: verified === true };
}

console.log(JSON.stringify(await (job.do === 'sign' ? sign() : verify())));
