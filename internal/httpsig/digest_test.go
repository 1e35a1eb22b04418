package httpsig

import "testing"

// The examples of RFC 9530 (appendices B and D) and of RFC 9421, by exact bytes.
//
// contract: R-22
func TestContentDigest(t *testing.T) {
	for _, tt := range []struct {
		name string
		alg  DigestAlgorithm
		body string
		want string
	}{
		{"empty body", SHA256, "", "sha-256=:47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=:"},
		{"RFC 9530 B.1", SHA256, "{\"hello\": \"world\"}\n", "sha-256=:RK/0qy18MlBSVnWgjwz6lZEWjP/lF5HF9bvEF8FabDg=:"},
		{"RFC 9421 B.2", SHA256, `{"hello": "world"}`, "sha-256=:X48E9qOokqqrvdts8nOJRJN3OWDUoyWxBf7kbu9DBPE=:"},
		{"RFC 9421 B.2, sha-512", SHA512, `{"hello": "world"}`,
			"sha-512=:WZDPaVn/7XgHaAy8pmojAkGWoRx2UFChF41A2svX+TaPm+AbwAgBWnrIiYllu7BNNyealdVLvRwEmTHWXvJwew==:"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := ContentDigest(tt.alg, []byte(tt.body)); got != tt.want {
				t.Errorf("got %s\nwant %s", got, tt.want)
			}
			if err := VerifyDigest([]string{tt.want}, []byte(tt.body), tt.alg); err != nil {
				t.Error(err)
			}
			if err := VerifyDigest([]string{tt.want}, []byte(tt.body+" "), tt.alg); err == nil {
				t.Error("one byte more is taken")
			}
		})
	}
}

// What is taken and refused with sha-256 needed is under testdata/hostile; here
// is what depends on the need.
func TestVerifyDigestNeed(t *testing.T) {
	body := []byte("x")
	a, b := ContentDigest(SHA256, body), ContentDigest(SHA512, body)
	for _, tt := range []struct {
		name  string
		lines []string
		need  DigestAlgorithm
		ok    bool
	}{
		{"none", nil, SHA256, false},
		{"sha-512 for sha-256", []string{b}, SHA256, false},
		{"sha-256 for sha-512", []string{a}, SHA512, false},
		{"sha-512 for sha-512", []string{b}, SHA512, true},
		{"both in two lines", []string{a, b}, SHA512, true},
		{"both in one line", []string{b + "," + a}, SHA256, true},
		{"an insecure one beside", []string{"md5=:AAAA:, " + a}, SHA256, true},
	} {
		if err := VerifyDigest(tt.lines, body, tt.need); (err == nil) != tt.ok {
			t.Errorf("%s: %v, want ok=%v", tt.name, err, tt.ok)
		}
	}
}
