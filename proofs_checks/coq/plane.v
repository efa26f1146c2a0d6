(* The plane's example: M = I + e e^T, e = (1, 1), and a = A k = (2/3, -1/3) for k = (1, 0). Falsified twins use it. *)
From mathcomp Require Import all_ssreflect all_algebra.
From mathcomp.algebra_tactics Require Import ring.
From Linattest Require Import forms energy.
Set Implicit Arguments.
Unset Strict Implicit.
Unset Printing Implicit Defensive.
Import Order.TTheory GRing.Theory Num.Theory.
Local Open Scope ring_scope.

Section Plane.
Variable R : realFieldType.
Implicit Types (a b c x y : R).

Definition vec x y : 'cV[R]_2 := \col_i (if i == 0 then x else y).

Lemma vecD a b x y : vec a b + vec x y = vec (a + x) (b + y).
Proof. by apply/matrixP => i j; rewrite !mxE; case: ifP. Qed.
Lemma vecZ c x y : c *: vec x y = vec (c * x) (c * y).
Proof. by apply/matrixP => i j; rewrite !mxE; case: ifP. Qed.
Lemma dot_vec a b x y : dot (vec a b) (vec x y) = a * x + b * y.
Proof. by rewrite /dot !mxE !big_ord_recl big_ord0 addr0 !mxE. Qed.

(* The Jacobian, and the energy, of a single row. *)
Lemma row_jacobian d (s k a : 'cV[R]_d) : s^T *m jacobian k a = (s + (- dot s k) *: a)^T.
Proof.
rewrite /jacobian mulmxBr mulmx1 mulmxA dotE mul_scalar_mx [RHS]linearD /= scaleNr; congr (_ + _).
by rewrite [RHS]linearN [in RHS]linearZ.
Qed.
Lemma energy_row d (M : 'M[R]_d) s : energy M s^T = form M s s.
Proof. by rewrite /energy /inner trmxK formE mxtrace_scalar mulr1n. Qed.

Definition example : 'M[R]_2 := 1%:M + vec 1 1 *m (vec 1 1)^T.
Definition start := vec 1 0.
Definition write := vec (2%:R / 3%:R) (- (1 / 3%:R)).

Lemma example_symmetric : symmetric example.
Proof. by apply: symmetric_add; [apply: trmx1 | apply: symmetric_outer]. Qed.
Lemma example_pd : pd example.
Proof. exact/pd_add/psd_outer/pd_scalar/ltr01. Qed.

Lemma example_gain : gain example start 1 = write.
Proof.
rewrite /gain invr1 scale1r; have unitM := pd_unit example_pd.
suff -> : start = example *m write by rewrite mulmxA mulVmx // mul1mx.
rewrite mulmxDl mul1mx -mulmxA dotE mul_mx_scalar dot_vec vecZ vecD.
by congr (vec _ _); field.
Qed.

Lemma example_cosine : dot write start <= 2%:R.
Proof.
rewrite dot_vec mulr1 mulr0 addr0 ler_pdivr_mulr ?ltr0n // -natrM ler_nat; exact: isT.
Qed.

Lemma example_image : (vec 3%:R 6%:R)^T *m jacobian start write = (vec 1 7%:R)^T.
Proof. by rewrite row_jacobian dot_vec vecZ vecD; congr (_ ^T); congr (vec _ _); field. Qed.
End Plane.

(* Twin: the energy identity with 1 - c. *)
Theorem twin_energy_identity : forall R : realFieldType, ~ (forall d (M : 'M[R]_d) (k : 'cV[R]_d) n,
  symmetric M -> M \in unitmx -> n != 0 ->
  let a := gain M k n in let J := jacobian k a in
  M - J *m M *m J^T = ((1 - dot a k) / n) *: (k *m k^T)).
Proof.
move=> R /(_ 1%N 1%:M 1%:M 1 (one_symmetric _) (unitmx1 _ _) (oner_neq0 _)) /=.
rewrite /gain invmx1 invr1 scale1r !mulmx1 one_dot !mulr1 subrr scale0r.
rewrite /jacobian !tr_scalar_mx !mulmx1 subrr !mul0mx subr0 => /one_eq0 /eqP.
by rewrite oner_eq0.
Qed.

(* Twin: J does not expand in the Euclidean norm either (VLA's proposition 2 as published). *)
Theorem twin_energy_contraction : forall R : realFieldType, ~ (forall d m (M : 'M[R]_d) k n (S : 'M[R]_(m, d)),
  symmetric M -> pd M -> 0 < n ->
  let a := gain M k n in dot a k <= 2%:R -> energy 1%:M (S *m jacobian k a) <= energy 1%:M S).
Proof.
move=> R /(_ 2%N 1%N (example R) (start R) 1 (vec 3%:R 6%:R)^T (example_symmetric R) (@example_pd R) ltr01) /=.
rewrite example_gain => /(_ (example_cosine R)); rewrite example_image !energy_row !form1 !dot_vec.
by rewrite -natrM -!natrM -!natrD mul1r -(natrD _ 1) ler_nat.
Qed.

(* Twin: some row keeps its energy from width 1 on. *)
Theorem twin_energy_attained : forall R : realFieldType, ~ (forall d (M : 'M[R]_d) k n, (0 < d)%N -> pd M ->
  exists2 s : 'rV[R]_d, s != 0 & energy M (s *m jacobian k (gain M k n)) = energy M s).
Proof.
move=> R /(_ 1%N 1%:M 1%:M 1 isT (one_pd ltr01)) [s nz].
rewrite /gain invmx1 invr1 scale1r !mulmx1 /jacobian tr_scalar_mx mulmx1 subrr mulmx0.
rewrite [s]mx11_scalar one_energy -(raddf0 (scalar_mx_additive _ _)) one_energy expr0n /= mul0r mulr1.
move=> /esym /eqP; rewrite sqrf_eq0 => /eqP s0; move/negP: nz; apply; apply/eqP.
by rewrite [s]mx11_scalar s0 raddf0.
Qed.

(* Twin: the cosine stays below 1. *)
Theorem twin_cosine_range : forall R : realFieldType, ~ (forall d (M : 'M[R]_d) (k : 'cV[R]_d) n,
  symmetric M -> pd M -> dot k k = 1 -> 0 < n ->
  n ^+ 2 = dot (invmx M *m k) (invmx M *m k) -> 0 < dot (gain M k n) k < 1).
Proof.
move=> R /(_ 1%N 1%:M 1%:M 1 (one_symmetric _) (one_pd ltr01)).
rewrite /gain invmx1 invr1 scale1r mulmx1 one_dot mulr1 expr1n => /(_ erefl ltr01 erefl).
by rewrite ltxx andbF.
Qed.

(* Twin: the Lyapunov function never grows. *)
Theorem twin_lyapunov_step : forall R : realFieldType, ~ (forall d m (M : 'M[R]_d) (u k : 'cV[R]_d)
    n (S : 'M[R]_(m, d)),
  symmetric M -> pd M -> 0 < n ->
  let N := M + u *m u^T in let a := gain N k n in dot a k <= 2%:R ->
  energy N (S *m jacobian k a) <= energy M S).
Proof.
move=> R /(_ 1%N 1%N 1%:M 1%:M 0 1 1%:M (one_symmetric _) (one_pd ltr01) ltr01) /=.
rewrite /jacobian mul0mx subr0 mulmx1 /dot mulmx0 mxE ler0n => /(_ isT).
rewrite tr_scalar_mx -scalar_mxM -raddfD !one_energy !mulr1 expr1n !mul1r.
by rewrite ger_addl ler10.
Qed.
